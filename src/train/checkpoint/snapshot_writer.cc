#include "src/train/checkpoint/snapshot_writer.h"

#include <chrono>
#include <condition_variable>
#include <utility>

#include <absl/base/thread_annotations.h>
#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "weft/core/hash.h"
#include "weft/core/mutex.h"
#include "weft/core/status.h"

namespace weft {
namespace {

absl::StatusOr<File> OpenTarget(const SnapshotWriter::Target& target) {
  absl::StatusOr<File> file = File::OpenForUpdate(target.path);
  const absl::StatusOr<int64_t> bytes = file.ok() ? file->Size() : absl::StatusOr<int64_t>(-1);
  WEFT_RETURN_IF_ERROR(bytes.status());
  if (absl::IsNotFound(file.status()) || (file.ok() && *bytes != target.bytes)) {
    return absl::NotFoundError(absl::StrCat("'", target.path,
                                            "' is not the file that rank 0 created: put the folder ",
                                            "of checkpoints on a file system that all ranks share"));
  }
  return file;
}

absl::Status WriteRange(const File& file, const FileRange& range, const char* data) {
  for (int64_t run = 0; run < range.runs; ++run) {
    WEFT_RETURN_IF_ERROR(file.WriteAt(range.offset + run * range.stride, data + run * range.run_bytes,
                                      static_cast<size_t>(range.run_bytes)));
  }
  // The device writes while the next ranges are hashed and copied.
  file.StartFlush(range.offset, range.span());
  return absl::OkStatus();
}

}  // namespace

// State of the writer. The thread keeps it alive.
class SnapshotWriter::Shared {
 public:
  Shared(std::vector<Target> targets, std::vector<Item> items, int64_t snapshot_bytes)
      : targets_(std::move(targets)),
        items_(std::move(items)),
        snapshot_bytes_(snapshot_bytes),
        states_(items_.size(), State::kLive),
        copies_(items_.size()) {}

  // Writes everything; runs in the thread.
  absl::Status Run() {
    absl::Status status = WriteAll();
    {
      const MutexLock lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    return status;
  }

  absl::Status BeforeUpdate(absl::Duration timeout) {
    // Copies from the back, because the thread writes from the front.
    int64_t left = snapshot_bytes_;
    for (size_t i = items_.size(); i-- > 0;) {
      if (!ReserveForCopy(i, left)) continue;
      const Item& item = items_[i];
      std::vector<char> copy(item.data, item.data + item.range.bytes());
      left -= item.range.bytes();
      {
        const MutexLock lock(mutex_);
        copies_[i] = std::move(copy);
        states_[i] = State::kCopied;
      }
      changed_.notify_all();
    }
    const MutexLock lock(mutex_);
    const auto none_live = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return done_ || (first_live_ = NextLive(first_live_)) == items_.size();
    };
    if (changed_.wait_for(mutex_, absl::ToChronoNanoseconds(timeout), none_live)) return absl::OkStatus();
    const std::string& path = targets_[items_[first_live_].file].path;
    return absl::DeadlineExceededError(
        absl::StrCat("the device has not taken '", path, "' within ", absl::FormatDuration(timeout)));
  }

  void Stop() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
  }

  const std::vector<Item>& items() const { return items_; }

 private:
  enum class State : uint8_t { kLive, kCopying, kCopied, kWriting, kWritten };

  // Marks an item as being copied. Returns false if it needs no copy, or if it exceeds `left` bytes.
  bool ReserveForCopy(size_t item, int64_t left) {
    const MutexLock lock(mutex_);
    if (done_ || states_[item] != State::kLive || items_[item].range.bytes() > left) return false;
    states_[item] = State::kCopying;
    return true;
  }

  // The first item at or after `item` whose live memory the thread reads or will read.
  size_t NextLive(size_t item) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (item < items_.size() && (states_[item] == State::kWritten || states_[item] == State::kCopied ||
                                    (states_[item] == State::kWriting && !copies_[item].empty()))) {
      ++item;
    }
    return item;
  }

  absl::Status WriteAll() {
    std::vector<std::unique_ptr<File>> files(targets_.size());
    for (size_t i = 0; i < items_.size(); ++i) {
      std::unique_ptr<File>& file = files[items_[i].file];
      if (file == nullptr) {
        WEFT_ASSIGN_OR_RETURN(File opened, OpenTarget(targets_[items_[i].file]));
        file = std::make_unique<File>(std::move(opened));
      }
      const char* data = Claim(i);
      if (data == nullptr) return absl::CancelledError("the save was abandoned");
      items_[i].range.hash = Hash64(data, static_cast<size_t>(items_[i].range.bytes()));
      const absl::Status status = WriteRange(*file, items_[i].range, data);
      Release(i);
      WEFT_RETURN_IF_ERROR(status);
    }
    for (const std::unique_ptr<File>& file : files) {
      if (file == nullptr) continue;
      if (stopping()) return absl::CancelledError("the save was abandoned");
      WEFT_RETURN_IF_ERROR(file->Close());
    }
    return absl::OkStatus();
  }

  bool stopping() const {
    const MutexLock lock(mutex_);
    return stop_;
  }

  // Waits until the item may be read. Returns its bytes; null if the save was abandoned.
  const char* Claim(size_t item) {
    const MutexLock lock(mutex_);
    const auto readable = [this, item]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stop_ || states_[item] != State::kCopying;
    };
    changed_.wait(mutex_, readable);
    if (stop_) return nullptr;
    states_[item] = State::kWriting;
    return copies_[item].empty() ? items_[item].data : copies_[item].data();
  }

  void Release(size_t item) {
    {
      const MutexLock lock(mutex_);
      states_[item] = State::kWritten;
      copies_[item] = {};
    }
    changed_.notify_all();
  }

  const std::vector<Target> targets_;
  std::vector<Item> items_;  // The thread writes hashes until done_.
  const int64_t snapshot_bytes_;

  mutable Mutex mutex_;
  std::condition_variable_any changed_;                            // For states_, done_ and stop_.
  std::vector<State> states_ ABSL_GUARDED_BY(mutex_);              // By item.
  std::vector<std::vector<char>> copies_ ABSL_GUARDED_BY(mutex_);  // By item; empty without a copy.
  size_t first_live_ ABSL_GUARDED_BY(mutex_) = 0;                  // Items before it are written or copied.
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

SnapshotWriter::SnapshotWriter(std::vector<Target> targets, std::vector<Item> items, int64_t snapshot_bytes)
    : shared_(std::make_shared<Shared>(std::move(targets), std::move(items), snapshot_bytes)),
      task_([shared = shared_] { return shared->Run(); }) {}

SnapshotWriter::~SnapshotWriter() { shared_->Stop(); }

absl::Status SnapshotWriter::BeforeUpdate(absl::Duration timeout) {
  if (task_.done()) return absl::OkStatus();  // Also if its thread did not start.
  return shared_->BeforeUpdate(timeout);
}
bool SnapshotWriter::done() const { return task_.done(); }
absl::Status SnapshotWriter::Wait(absl::Duration timeout) { return task_.Wait(timeout); }
const std::vector<SnapshotWriter::Item>& SnapshotWriter::items() const { return shared_->items(); }

}  // namespace weft
