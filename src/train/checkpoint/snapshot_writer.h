// Writer of one rank's ranges of a checkpoint, in a thread of its own: see Note [Saving while training goes
// on] in weft/train/checkpoint.h.
//
// Thread safety: one thread constructs, calls and destroys it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/time/time.h>

#include "src/train/checkpoint/background_task.h"
#include "src/train/checkpoint/file_range.h"

namespace weft {

class SnapshotWriter {
 public:
  // A range and the memory that has its bytes, end to end. The writer fills in the hash.
  struct Item {
    size_t file;  // Index in `targets`.
    FileRange range;
    const char* data;
  };
  struct Target {
    std::string path;
    int64_t bytes;
  };

  // Starts to write `items`, in their order, to existing files, and flushes them to the device.
  // `snapshot_bytes`: see CheckpointOptions.
  // Lifetime: the memory of the items must not change until BeforeUpdate or Wait has returned.
  SnapshotWriter(std::vector<Target> targets, std::vector<Item> items, int64_t snapshot_bytes);
  // Stops after the range that is being written, for which it waits at most five seconds: a write that hangs
  // longer may still read the items.
  ~SnapshotWriter();
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  // Copies ranges that are not written yet, and waits for those that exceed the limit of memory.
  // Errors: kDeadlineExceeded (the device did not take them; names the file).
  absl::Status BeforeUpdate(absl::Duration timeout);
  bool done() const;
  // Waits until all is written. Errors: those of the system (names the file), kNotFound (the files are not
  // those that rank 0 created), those of BackgroundTask::Wait.
  absl::Status Wait(absl::Duration timeout);
  // The items with their hashes. REQUIRES: Wait has returned OK.
  const std::vector<Item>& items() const;

 private:
  class Shared;
  std::shared_ptr<Shared> shared_;  // Shared with the task.
  BackgroundTask task_;             // Last: its destructor waits for the thread.
};

}  // namespace weft
