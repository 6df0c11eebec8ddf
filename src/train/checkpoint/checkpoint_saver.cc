#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/train/checkpoint/background_task.h"
#include "src/train/checkpoint/checkpoint_folder.h"
#include "src/train/checkpoint/checkpoint_layout.h"
#include "src/train/checkpoint/manifest.h"
#include "src/train/checkpoint/save_commit.h"
#include "src/train/checkpoint/save_messages.h"
#include "src/train/checkpoint/snapshot_writer.h"
#include "src/train/files/file_io.h"
#include "src/train/files/shared_folder.h"
#include "weft/core/status.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

using Blobs = std::vector<std::string>;

// Creates a file of its full size with its header. Flushes nothing: the commit does.
absl::Status CreateFile(const std::string& path, const SafetensorsLayout& layout) {
  WEFT_ASSIGN_OR_RETURN(File file, File::CreateNew(path));
  WEFT_RETURN_IF_ERROR(file.Reserve(layout.file_bytes()));
  return file.WriteAt(0, layout.header().data(), layout.header().size());
}

}  // namespace

class CheckpointSaver::Impl {
 public:
  Impl(Bootstrap& bootstrap, CheckpointOptions options, absl::Duration timeout)
      : bootstrap_(bootstrap), options_(options), timeout_(timeout) {}
  ~Impl() { Abandon(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // `own`: an error of this rank, which fails all.
  absl::Status Claim(const std::string& path, const absl::Status& own) {
    WEFT_RETURN_IF_ERROR(
        AgreeOnOptions(bootstrap_, "options of the checkpoint saver", SharedOptions(path, own), timeout_));
    const auto claim = [&]() -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(folder_, CheckpointFolder::Claim(path));
      return absl::OkStatus();
    };
    WEFT_RETURN_IF_ERROR(Agree(first() ? claim() : absl::OkStatus()));
    if (bootstrap_.size() == 1) return absl::OkStatus();
    const absl::StatusOr<std::string> staged = first() ? folder_->Stage(/*step=*/0) : std::string();
    absl::Status status = CheckIsShared(bootstrap_, staged, /*writes=*/true, timeout_);
    if (first() && staged.ok()) CheckpointFolder::Discard(*staged);
    return status;
  }

  const std::vector<std::string>& removed() const {
    static const std::vector<std::string> kNone;
    return first() ? folder_->removed() : kNone;
  }

  std::vector<std::string> TakeWarnings() {
    return first() ? folder_->TakeWarnings() : std::vector<std::string>();
  }

  absl::Status CheckSpace(int64_t bytes) const {
    if (!first()) return absl::OkStatus();
    return folder_->CheckSpace({.total = bytes, .largest = std::min(bytes, options_.max_file_bytes)});
  }

  absl::Status Start(CheckpointState state) {
    WEFT_ASSIGN_OR_RETURN(const Blobs blobs, ExchangeBlobs(bootstrap_, "tensors of a checkpoint",
                                                           TensorsToSave(state), timeout_));
    state_ = std::move(state);
    step_ = state_.step;
    absl::Status status = MakeLayout(blobs);
    if (status.ok() && first()) status = CreateFiles();
    status = Agree(status);
    if (status.ok()) status = ShareStagedFolder();
    if (!status.ok()) {
      Abandon();
      return status;
    }
    StartWriting();
    return absl::OkStatus();
  }

  bool saving() const { return phase_ != Phase::kIdle; }
  int64_t saving_step() const { return step_; }

  absl::Status BeforeUpdate() {
    return phase_ == Phase::kWriting ? writer_->BeforeUpdate(timeout_) : absl::OkStatus();
  }

  bool CanAdvance() const {
    if (phase_ == Phase::kWriting) return writer_->done();
    return phase_ == Phase::kCommitting && (commit_ == nullptr || commit_->done());
  }

  absl::StatusOr<bool> Advance() {
    if (!saving()) return Agree(absl::FailedPreconditionError("no save is under way: call Start first"));
    const absl::Status status = phase_ == Phase::kWriting ? StartCommit() : EndCommit();
    if (!status.ok()) Abandon();
    WEFT_RETURN_IF_ERROR(status);
    return !saving();
  }

  absl::Status Finish() {
    while (saving()) WEFT_RETURN_IF_ERROR(Advance().status());
    return absl::OkStatus();
  }

 private:
  enum class Phase : uint8_t { kIdle, kWriting, kCommitting };

  bool first() const { return bootstrap_.rank() == 0; }
  absl::Status Agree(const absl::Status& local) { return AgreeOnStatus(bootstrap_, local, timeout_); }

  // The options that all ranks must have alike: each of them lays out the files. `own`: as in Claim.
  absl::StatusOr<std::vector<OptionValue>> SharedOptions(const std::string& path,
                                                         const absl::Status& own) const {
    WEFT_RETURN_IF_ERROR(own);
    if (options_.replicas < 1 || options_.replica < 0 || options_.replica >= options_.replicas ||
        options_.keep < 0 || options_.max_file_bytes < 1 || options_.snapshot_bytes < 0) {
      return absl::InvalidArgumentError("an option of the checkpoint saver is out of range");
    }
    constexpr const char* kRemedy = "give it";  // "… alike on all ranks"
    return std::vector<OptionValue>{
        {"the folder of checkpoints", path, kRemedy},
        {"CheckpointOptions::replicas", absl::StrCat(options_.replicas), kRemedy},
        {"CheckpointOptions::max_file_bytes", absl::StrCat(options_.max_file_bytes), kRemedy}};
  }

  // The message about the tensors of a state, or the reason why its save cannot begin.
  absl::StatusOr<std::string> TensorsToSave(const CheckpointState& state) const {
    if (saving()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the save of step ", step_, " is under way: call Finish before the next Start"));
    }
    WEFT_RETURN_IF_ERROR(CheckState(state));
    return EncodeTensors(state);
  }

  absl::Status MakeLayout(const Blobs& blobs) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<CheckpointLayout::Tensor> tensors,
                          DecodeTensors(blobs, state_.step));
    WEFT_ASSIGN_OR_RETURN(layout_, CheckpointLayout::Make(tensors, options_.max_file_bytes));
    return absl::OkStatus();
  }

  // On rank 0.
  absl::Status CreateFiles() {
    WEFT_RETURN_IF_ERROR(folder_->CheckSpace(layout_->sizes()));
    WEFT_ASSIGN_OR_RETURN(staged_, folder_->Stage(state_.step));
    for (const auto& file : layout_->files()) {
      WEFT_RETURN_IF_ERROR(CreateFile(absl::StrCat(staged_, "/", file.name), file.layout));
    }
    return absl::OkStatus();
  }

  absl::Status ShareStagedFolder() {
    WEFT_ASSIGN_OR_RETURN(const Blobs folders,
                          ExchangeBlobs(bootstrap_, "staging folder of a checkpoint", staged_, timeout_));
    staged_ = folders[0];
    return absl::OkStatus();
  }

  void StartWriting() {
    std::vector<SnapshotWriter::Target> targets;
    for (const auto& file : layout_->files()) {
      targets.push_back({absl::StrCat(staged_, "/", file.name), file.layout.file_bytes()});
    }
    writer_ = std::make_unique<SnapshotWriter>(std::move(targets), MakeItems(), options_.snapshot_bytes);
    phase_ = Phase::kWriting;
  }

  // The ranges that this rank writes. Ranges are dealt to the replicas in turn.
  std::vector<SnapshotWriter::Item> MakeItems() const {
    std::vector<SnapshotWriter::Item> items;
    int64_t number = 0;
    for (const CheckpointArrays& arrays : state_.arrays) {
      for (const ShardView& shard : arrays.shards) {
        const auto place = layout_->Find(arrays.file, shard.parameter->name + arrays.suffix, 0);
        const auto* data = reinterpret_cast<const char*>(shard.data);
        for (const FileRange& range : CutIntoRanges(shard.piece, place.offset)) {
          if (number++ % options_.replicas == options_.replica) items.push_back({place.file, range, data});
          data += range.bytes();
        }
      }
    }
    // Each rank begins at another place: the system lets one process at a time write to a file.
    const auto begin = static_cast<std::ptrdiff_t>(items.size() * static_cast<size_t>(bootstrap_.rank()) /
                                                   static_cast<size_t>(bootstrap_.size()));
    std::rotate(items.begin(), items.begin() + begin, items.end());
    return items;
  }

  // Gathers the parts of all ranks; rank 0 then begins to commit.
  absl::Status StartCommit() {
    const absl::Status written = writer_->Wait(timeout_);
    const absl::StatusOr<std::string> part =
        written.ok() ? absl::StatusOr<std::string>(EncodePart(*writer_, state_.counts_of_parameters))
                     : written;
    WEFT_ASSIGN_OR_RETURN(const Blobs parts,
                          ExchangeBlobs(bootstrap_, "parts of a checkpoint", part, timeout_));
    writer_.reset();
    state_.arrays.clear();
    phase_ = Phase::kCommitting;
    if (!first()) return absl::OkStatus();
    // The task has copies of its inputs: it outlives this object if the device does not answer.
    abandoned_ = std::make_shared<std::atomic<bool>>(false);
    SaveCommit commit{folder_, staged_, *layout_, std::move(state_), options_.keep, abandoned_};
    commit_ = std::make_unique<BackgroundTask>([commit, parts] { return commit.Run(parts); },
                                               std::min(timeout_, BackgroundTask::kLastWait));
    if (commit_->has_started()) staged_.clear();  // It is the commit's now. See Note [Late commits].
    return absl::OkStatus();
  }

  // The status of rank 0's commit. Waits for it.
  absl::Status EndCommit() {
    WEFT_RETURN_IF_ERROR(Agree(commit_ == nullptr ? absl::OkStatus() : commit_->Wait(timeout_)));
    phase_ = Phase::kIdle;
    commit_.reset();
    staged_.clear();
    return absl::OkStatus();
  }

  // Ends a save. A commit that has begun may end soon; a late one makes nothing visible.
  void Abandon() {
    writer_.reset();
    commit_.reset();
    if (abandoned_ != nullptr) *abandoned_ = true;
    if (first() && !staged_.empty()) CheckpointFolder::Discard(staged_);
    staged_.clear();
    phase_ = Phase::kIdle;
  }

  Bootstrap& bootstrap_;
  const CheckpointOptions options_;
  const absl::Duration timeout_;
  std::shared_ptr<CheckpointFolder> folder_;  // On rank 0.
  Phase phase_ = Phase::kIdle;
  CheckpointState state_;  // Until the commit.
  int64_t step_ = 0;
  std::optional<CheckpointLayout> layout_;
  std::string staged_;  // Folder of the save under way. On rank 0, the commit takes it over.
  std::unique_ptr<SnapshotWriter> writer_;
  std::unique_ptr<BackgroundTask> commit_;        // On rank 0.
  std::shared_ptr<std::atomic<bool>> abandoned_;  // On rank 0: shared with the last commit.
};

absl::StatusOr<std::unique_ptr<CheckpointSaver>> CheckpointSaver::Open(Bootstrap& bootstrap,
                                                                       const std::string& folder,
                                                                       const CheckpointOptions& options) {
  const absl::StatusOr<absl::Duration> timeout = TimeoutOrDefault(options.timeout);
  auto impl = std::make_unique<Impl>(bootstrap, options, timeout.value_or(kFallbackTimeout));
  WEFT_RETURN_IF_ERROR(impl->Claim(folder, timeout.status()));
  return std::unique_ptr<CheckpointSaver>(new CheckpointSaver(std::move(impl)));
}

CheckpointSaver::CheckpointSaver(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointSaver::~CheckpointSaver() = default;

const std::vector<std::string>& CheckpointSaver::removed() const { return impl_->removed(); }
std::vector<std::string> CheckpointSaver::TakeWarnings() { return impl_->TakeWarnings(); }
absl::Status CheckpointSaver::CheckSpace(int64_t bytes) const { return impl_->CheckSpace(bytes); }
absl::Status CheckpointSaver::Start(CheckpointState state) { return impl_->Start(std::move(state)); }
bool CheckpointSaver::saving() const { return impl_->saving(); }
int64_t CheckpointSaver::saving_step() const { return impl_->saving_step(); }
absl::Status CheckpointSaver::BeforeUpdate() { return impl_->BeforeUpdate(); }
bool CheckpointSaver::CanAdvance() const { return impl_->CanAdvance(); }
absl::StatusOr<bool> CheckpointSaver::Advance() { return impl_->Advance(); }
absl::Status CheckpointSaver::Finish() { return impl_->Finish(); }

}  // namespace weft
