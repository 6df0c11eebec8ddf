// Files that stay open between reads. The one that was not used for longest makes room for a new one. If a
// file cannot be opened, all others are closed, and it is tried again.
//
// Thread safety: Open may be called from several threads.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include <absl/status/statusor.h>

#include "src/train/files/file_io.h"
#include "weft/core/mutex.h"

namespace weft {

class OpenFiles {
 public:
  // The most that stay open. A process may have as few as 256 descriptors, and several such sets of files.
  static constexpr size_t kMost = 32;

  // Errors: those of File::OpenForReading.
  absl::StatusOr<std::shared_ptr<const File>> Open(const std::string& path);

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const File>>;

  Mutex mutex_;
  std::list<Entry> files_ ABSL_GUARDED_BY(mutex_);  // By path, most recently used first.
};

}  // namespace weft
