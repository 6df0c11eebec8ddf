#include "src/train/files/folder_entries.h"

#include <filesystem>
#include <sys/stat.h>
#include <system_error>

#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"

namespace weft {

namespace fs = std::filesystem;

std::string InFolder(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder, "/", name);
}

bool Exists(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0;
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  auto entry = fs::directory_iterator(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  if (error) return ErrnoStatus(error.value(), "read the folder", folder);
  return names;
}

std::error_code RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error;
}

}  // namespace weft
