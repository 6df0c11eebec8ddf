#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <nlohmann/json.hpp>

#include "src/train/checkpoint/background_task.h"
#include "src/train/checkpoint/checkpoint_folder.h"
#include "src/train/checkpoint/checkpoint_layout.h"
#include "src/train/checkpoint/manifest.h"
#include "src/train/checkpoint/snapshot_writer.h"
#include "src/train/files/file_io.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

using Json = nlohmann::json;
using Blobs = std::vector<std::string>;
using Tensor = CheckpointLayout::Tensor;

constexpr const char* kNotOfThisExchange =
    "a peer sent another message: ranks call the saver in different orders";

// The step and the tensors of which this rank has elements.
std::string EncodeTensors(const CheckpointState& state) {
  Json tensors = Json::array();
  for (const CheckpointArrays& arrays : state.arrays) {
    for (const ShardView& shard : arrays.shards) {
      const Shape& shape = shard.parameter->shape;
      tensors.push_back({arrays.file, shard.parameter->name + arrays.suffix,
                         std::vector<int64_t>(shape.begin(), shape.end())});
    }
  }
  return Json{{"step", state.step}, {"tensors", std::move(tensors)}}.dump();
}

// The tensors of all ranks, in the order of their first mention. Errors: kInvalidArgument (ranks disagree).
absl::StatusOr<std::vector<Tensor>> DecodeTensors(const Blobs& blobs, int64_t step) {
  std::vector<Tensor> tensors;
  std::map<std::pair<std::string, std::string>, size_t> index;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    const Json json = Json::parse(blobs[rank], nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json.contains("tensors")) {
      return absl::InternalError(kNotOfThisExchange);
    }
    const auto peer_step = json.at("step").get<int64_t>();
    if (peer_step != step) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " saves step ", peer_step, ", but another rank saves step ", step));
    }
    for (const Json& item : json.at("tensors")) {
      Tensor tensor{item[0], item[1], {}};
      const auto sizes = item[2].get<std::vector<int64_t>>();
      tensor.shape.assign(sizes.begin(), sizes.end());
      const auto [found, added] = index.emplace(std::pair(tensor.stem, tensor.name), tensors.size());
      if (added) {
        tensors.push_back(std::move(tensor));
      } else if (tensors[found->second].shape != tensor.shape) {
        return absl::InvalidArgumentError(
            absl::StrCat("the array '", tensor.name, "' has different shapes on different ranks"));
      }
    }
  }
  return tensors;
}

// A rank's part of the manifest.
struct RankPart {
  std::vector<std::vector<FileRange>> ranges;  // By file.
  std::map<std::string, int64_t> counts_of_parameters;
};

std::string EncodePart(const SnapshotWriter& writer, const std::map<std::string, int64_t>& counts) {
  const std::vector<SnapshotWriter::Item>& items = writer.items();
  std::string blob;
  const auto append = [&blob](const auto& value) {
    blob.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  append(static_cast<uint64_t>(items.size()));
  for (const SnapshotWriter::Item& item : items) {
    append(static_cast<uint64_t>(item.file));
    append(item.range);
  }
  return blob + Json(counts).dump();
}

absl::StatusOr<RankPart> DecodePart(std::string_view blob, size_t files) {
  static_assert(std::is_trivially_copyable_v<FileRange>);
  RankPart part;
  part.ranges.resize(files);
  const auto take = [&blob](auto& value) {
    if (blob.size() < sizeof(value)) return false;
    std::memcpy(&value, blob.data(), sizeof(value));
    blob.remove_prefix(sizeof(value));
    return true;
  };
  uint64_t count = 0;
  if (!take(count)) return absl::InternalError(kNotOfThisExchange);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t file = 0;
    FileRange range;
    if (!take(file) || !take(range) || file >= files) return absl::InternalError(kNotOfThisExchange);
    part.ranges[file].push_back(range);
  }
  const Json counts = Json::parse(blob, nullptr, /*allow_exceptions=*/false);
  if (!counts.is_object()) return absl::InternalError(kNotOfThisExchange);
  part.counts_of_parameters = counts.get<std::map<std::string, int64_t>>();
  return part;
}

// The ranges of a file whose whole content is in memory, with their hashes.
std::vector<FileRange> RangesOf(std::string_view content) {
  std::vector<FileRange> ranges;
  for (size_t begin = 0; begin < content.size(); begin += kMaxRangeSpan) {
    const std::string_view piece = content.substr(begin, kMaxRangeSpan);
    ranges.push_back({.offset = static_cast<int64_t>(begin),
                      .run_bytes = static_cast<int64_t>(piece.size()),
                      .hash = Hash64(piece)});
  }
  return ranges;
}

// Creates a file of its full size with its header. Flushes nothing: its writers do.
absl::Status CreateFile(const std::string& path, const SafetensorsLayout& layout) {
  WEFT_ASSIGN_OR_RETURN(File file, File::CreateNew(path));
  WEFT_RETURN_IF_ERROR(file.Reserve(layout.file_bytes()));
  return file.WriteAt(0, layout.header().data(), layout.header().size());
}

// Writes the files that are not data, and the manifest. Runs on rank 0.
absl::Status WriteDescription(const std::string& staged, const CheckpointLayout& layout,
                              CheckpointManifest manifest,
                              const std::map<std::string, std::string>& extra_files) {
  for (const auto* files : {&layout.indexes(), &extra_files}) {
    for (const auto& [name, content] : *files) {
      if (!manifest.files
               .emplace(name,
                        CheckpointManifest::File{"", static_cast<int64_t>(content.size()), RangesOf(content)})
               .second) {
        return absl::InvalidArgumentError(absl::StrCat("the checkpoint has two files named '", name, "'"));
      }
      WEFT_RETURN_IF_ERROR(WriteWholeFile(absl::StrCat(staged, "/", name), content));
    }
  }
  return WriteWholeFile(absl::StrCat(staged, "/", kManifestName), FormatManifest(manifest));
}

// OK if ranks have written each byte of a file once.
absl::Status CheckComplete(const CheckpointLayout::File& layout, const CheckpointManifest::File& file) {
  const absl::Status status = CheckCoverage(file.ranges, file.bytes);
  if (status.ok()) return absl::OkStatus();
  const char* remedy =
      absl::IsNotFound(status)
          ? "pass the shards of all ranks"
          : "ranks hold the same elements: set `replica` and `replicas`, or, if parameters have "
            "meshes of their own, pass the shards of the first replica only";
  return absl::InvalidArgumentError(
      absl::StrCat("the ranks' shards do not make up '", layout.name, "': ", status.message(), "; ", remedy));
}

// Rank 0's part of a save after all ranks have written.
struct Commit {
  std::shared_ptr<CheckpointFolder> folder;
  std::string staged;
  CheckpointLayout layout;
  CheckpointState state;  // Without arrays.
  int64_t keep;

  absl::Status Run(const Blobs& parts) const {
    WEFT_ASSIGN_OR_RETURN(CheckpointManifest manifest, Merge(parts));
    WEFT_RETURN_IF_ERROR(WriteDescription(staged, layout, std::move(manifest), state.files));
    return folder->Commit(staged, state.step, keep);
  }

  absl::StatusOr<CheckpointManifest> Merge(const Blobs& blobs) const {
    CheckpointManifest manifest;
    manifest.step = state.step;
    manifest.counts = state.counts;
    manifest.properties = state.properties;
    const std::vector<CheckpointLayout::File>& files = layout.files();
    std::vector<CheckpointManifest::File> merged;
    merged.reserve(files.size());
    for (const CheckpointLayout::File& file : files) {
      merged.push_back({file.stem, file.layout.file_bytes(), RangesOf(file.layout.header())});
    }
    for (const std::string& blob : blobs) {
      WEFT_ASSIGN_OR_RETURN(RankPart part, DecodePart(blob, files.size()));
      for (size_t i = 0; i < files.size(); ++i) {
        merged[i].ranges.insert(merged[i].ranges.end(), part.ranges[i].begin(), part.ranges[i].end());
      }
      for (const auto& [name, count] : part.counts_of_parameters) {
        if (manifest.counts_of_parameters.emplace(name, count).first->second == count) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("ranks that hold '", name, "' have different counts for it"));
      }
    }
    for (size_t i = 0; i < files.size(); ++i) {
      WEFT_RETURN_IF_ERROR(CheckComplete(files[i], merged[i]));
      manifest.files[files[i].name] = std::move(merged[i]);
    }
    return manifest;
  }
};

}  // namespace

class CheckpointSaver::Impl {
 public:
  Impl(Bootstrap& bootstrap, CheckpointOptions options) : bootstrap_(bootstrap), options_(options) {}
  ~Impl() { Abandon(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::Status Claim(const std::string& path) {
    const auto claim = [&]() -> absl::Status {
      if (options_.replicas < 1 || options_.replica < 0 || options_.replica >= options_.replicas ||
          options_.keep < 0 || options_.max_file_bytes < 1 || options_.snapshot_bytes < 0) {
        return absl::InvalidArgumentError("an option of the checkpoint saver is out of range");
      }
      if (!first()) return absl::OkStatus();
      WEFT_ASSIGN_OR_RETURN(folder_, CheckpointFolder::Claim(path));
      return absl::OkStatus();
    };
    return Agree(claim());
  }

  const std::vector<std::string>& removed() const {
    static const std::vector<std::string> kNone;
    return first() ? folder_->removed() : kNone;
  }

  absl::Status CheckSpace(int64_t bytes) const {
    return first() ? folder_->CheckSpace(bytes, std::min(bytes, options_.max_file_bytes)) : absl::OkStatus();
  }

  absl::Status Start(CheckpointState state) {
    WEFT_CHECK(phase_ == Phase::kIdle, "a save is under way: call Finish first");
    state_ = std::move(state);
    step_ = state_.step;
    WEFT_ASSIGN_OR_RETURN(const Blobs blobs, ExchangeBlobs(bootstrap_, "tensors of a checkpoint",
                                                           EncodeTensors(state_), options_.timeout));
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
    return phase_ == Phase::kWriting ? writer_->BeforeUpdate(options_.timeout) : absl::OkStatus();
  }

  bool CanAdvance() const {
    if (phase_ == Phase::kWriting) return writer_->done();
    return phase_ == Phase::kCommitting && (commit_ == nullptr || commit_->done());
  }

  absl::StatusOr<bool> Advance() {
    WEFT_CHECK(saving(), "no save is under way");
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
  absl::Status Agree(const absl::Status& local) { return AgreeOnStatus(bootstrap_, local, options_.timeout); }

  absl::Status MakeLayout(const Blobs& blobs) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<Tensor> tensors, DecodeTensors(blobs, state_.step));
    WEFT_ASSIGN_OR_RETURN(layout_, CheckpointLayout::Make(tensors, options_.max_file_bytes));
    return absl::OkStatus();
  }

  // On rank 0.
  absl::Status CreateFiles() {
    int64_t largest = 0;
    for (const auto& file : layout_->files()) largest = std::max(largest, file.layout.file_bytes());
    WEFT_RETURN_IF_ERROR(folder_->CheckSpace(layout_->bytes(), largest));
    WEFT_ASSIGN_OR_RETURN(staged_, folder_->Stage(state_.step));
    for (const auto& file : layout_->files()) {
      WEFT_RETURN_IF_ERROR(CreateFile(absl::StrCat(staged_, "/", file.name), file.layout));
    }
    return absl::OkStatus();
  }

  absl::Status ShareStagedFolder() {
    WEFT_ASSIGN_OR_RETURN(const Blobs folders, ExchangeBlobs(bootstrap_, "staging folder of a checkpoint",
                                                             staged_, options_.timeout));
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
    const absl::Status written = writer_->Wait(options_.timeout);
    const absl::StatusOr<std::string> part =
        written.ok() ? absl::StatusOr<std::string>(EncodePart(*writer_, state_.counts_of_parameters))
                     : written;
    WEFT_ASSIGN_OR_RETURN(const Blobs parts,
                          ExchangeBlobs(bootstrap_, "parts of a checkpoint", part, options_.timeout));
    writer_.reset();
    state_.arrays.clear();
    phase_ = Phase::kCommitting;
    if (!first()) return absl::OkStatus();
    // The task has copies of its inputs: it outlives this object if the device does not answer.
    Commit commit{folder_, staged_, *layout_, std::move(state_), options_.keep};
    commit_ = std::make_unique<BackgroundTask>([commit, parts] { return commit.Run(parts); });
    return absl::OkStatus();
  }

  // The status of rank 0's commit. Waits for it.
  absl::Status EndCommit() {
    WEFT_RETURN_IF_ERROR(Agree(commit_ == nullptr ? absl::OkStatus() : commit_->Wait(options_.timeout)));
    phase_ = Phase::kIdle;
    commit_.reset();
    staged_.clear();
    return absl::OkStatus();
  }

  // Ends a save without a commit.
  void Abandon() {
    writer_.reset();
    commit_.reset();
    if (first() && !staged_.empty()) CheckpointFolder::Discard(staged_);
    staged_.clear();
    phase_ = Phase::kIdle;
  }

  Bootstrap& bootstrap_;
  const CheckpointOptions options_;
  std::shared_ptr<CheckpointFolder> folder_;  // On rank 0.
  Phase phase_ = Phase::kIdle;
  CheckpointState state_;  // Until the commit.
  int64_t step_ = 0;
  std::optional<CheckpointLayout> layout_;
  std::string staged_;  // Folder of the save under way.
  std::unique_ptr<SnapshotWriter> writer_;
  std::unique_ptr<BackgroundTask> commit_;  // On rank 0.
};

absl::StatusOr<std::unique_ptr<CheckpointSaver>> CheckpointSaver::Open(Bootstrap& bootstrap,
                                                                       const std::string& folder,
                                                                       const CheckpointOptions& options) {
  auto impl = std::make_unique<Impl>(bootstrap, options);
  WEFT_RETURN_IF_ERROR(impl->Claim(folder));
  return std::unique_ptr<CheckpointSaver>(new CheckpointSaver(std::move(impl)));
}

CheckpointSaver::CheckpointSaver(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointSaver::~CheckpointSaver() = default;

const std::vector<std::string>& CheckpointSaver::removed() const { return impl_->removed(); }
absl::Status CheckpointSaver::CheckSpace(int64_t bytes) const { return impl_->CheckSpace(bytes); }
absl::Status CheckpointSaver::Start(CheckpointState state) { return impl_->Start(std::move(state)); }
bool CheckpointSaver::saving() const { return impl_->saving(); }
int64_t CheckpointSaver::saving_step() const { return impl_->saving_step(); }
absl::Status CheckpointSaver::BeforeUpdate() { return impl_->BeforeUpdate(); }
bool CheckpointSaver::CanAdvance() const { return impl_->CanAdvance(); }
absl::StatusOr<bool> CheckpointSaver::Advance() { return impl_->Advance(); }
absl::Status CheckpointSaver::Finish() { return impl_->Finish(); }

}  // namespace weft
