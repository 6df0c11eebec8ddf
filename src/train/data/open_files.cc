#include "src/train/data/open_files.h"

#include <algorithm>

#include "weft/core/status.h"

namespace weft {

absl::StatusOr<std::shared_ptr<const File>> OpenFiles::Open(const std::string& path) {
  const MutexLock lock(mutex_);
  const auto found =
      std::find_if(files_.begin(), files_.end(), [&](const Entry& entry) { return entry.first == path; });
  if (found != files_.end()) {
    files_.splice(files_.begin(), files_, found);
    return files_.front().second;
  }
  absl::StatusOr<File> file = File::OpenForReading(path);
  if (!file.ok() && !files_.empty()) {  // The process may have no descriptor left.
    files_.clear();
    file = File::OpenForReading(path);
  }
  WEFT_RETURN_IF_ERROR(file.status());
  files_.emplace_front(path, std::make_shared<const File>(*std::move(file)));
  if (files_.size() > kMost) files_.pop_back();
  return files_.front().second;
}

}  // namespace weft
