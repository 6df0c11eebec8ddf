#include "src/train/data/data_files.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <sys/stat.h>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "weft/core/status.h"
#include "weft/train/config.h"

namespace weft {
namespace {

struct FileFormat {
  std::string_view beginning;
  const char* name;
  const char* remedy;
};

constexpr FileFormat kFormatsWithoutText[] = {
    {"\x1f\x8b", "gzip file", "unpack it first"},
    {"\x28\xb5\x2f\xfd", "Zstandard file", "unpack it first"},
    {"PK\x03\x04", "ZIP archive", "unpack it first"},
    {"PAR1", "Parquet file", "convert it by tools/tokenize.py"},
    {"\x93NUMPY", "NumPy file", "write its numbers to a .u16 or .u32 file"},
};
constexpr size_t kLongestBeginning = 6;

// Null for other formats, and for a file that cannot be read.
const FileFormat* FormatWithoutText(const std::string& path, int64_t bytes) {
  const absl::StatusOr<File> file = File::OpenForReading(path);
  if (!file.ok()) return nullptr;
  std::string found(std::min(static_cast<size_t>(bytes), kLongestBeginning), '\0');
  if (!file->ReadAt(0, found.data(), found.size()).ok()) return nullptr;
  for (const FileFormat& format : kFormatsWithoutText) {
    if (std::string_view(found).starts_with(format.beginning)) return &format;
  }
  return nullptr;
}

// Recursive walk over one path.
class FolderWalk {
 public:
  absl::Status Visit(const std::string& path) {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) {
      return Unreachable(path);
    }
    if (S_ISREG(info.st_mode)) {
      files_.push_back(path);
      return absl::OkStatus();
    }
    if (!S_ISDIR(info.st_mode)) {
      return absl::DataLossError(
          absl::StrCat("'", path, "' is not a file or a folder: remove it from the data"));
    }
    const FolderId id{info.st_dev, info.st_ino};
    if (std::find(open_.begin(), open_.end(), id) != open_.end()) {
      return absl::DataLossError(
          absl::StrCat("the folder '", path, "' contains itself through a link: remove the link"));
    }
    open_.push_back(id);
    absl::Status status = VisitEntries(path);
    open_.pop_back();
    return status;
  }

  std::vector<std::string> TakeFiles() {
    std::sort(files_.begin(), files_.end());
    return std::move(files_);
  }

 private:
  using FolderId = std::pair<dev_t, ino_t>;

  static absl::Status Unreachable(const std::string& path) {
    const int error = errno;
    struct stat link {};
    if (error == ENOENT && lstat(path.c_str(), &link) == 0) {
      return absl::NotFoundError(
          absl::StrCat("the target of link '", path, "' does not exist: fix or remove it"));
    }
    return ErrnoStatus(error, "open", path);
  }

  absl::Status VisitEntries(const std::string& folder) {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
    if (directory == nullptr) {
      return ErrnoStatus(errno, "open", folder);
    }
    const std::string prefix = folder.back() == '/' ? folder : folder + "/";
    errno = 0;
    while (const dirent* entry = readdir(directory.get())) {
      if (!IsSkippedAsData(entry->d_name)) {
        WEFT_RETURN_IF_ERROR(Visit(prefix + entry->d_name));
      }
      errno = 0;
    }
    return errno == 0 ? absl::OkStatus() : ErrnoStatus(errno, "read", folder);
  }

  // The folders from the root of the walk to the current one. A second visit to one of them shows a cycle of
  // links.
  std::vector<FolderId> open_;
  std::vector<std::string> files_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandDataPaths(absl::Span<const std::string> paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    FolderWalk walk;
    WEFT_RETURN_IF_ERROR(walk.Visit(path));
    std::vector<std::string> found = walk.TakeFiles();
    if (found.empty()) {
      return absl::DataLossError(absl::StrCat("the folder '", path, "' has no files (hidden ones and ",
                                              kDefaultDumpFolder, " are skipped)"));
    }
    files.insert(files.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
  }
  return files;
}

bool IsSkippedAsData(std::string_view name) { return name.starts_with('.') || name == kDefaultDumpFolder; }

std::string WarningAboutText(const Corpus& corpus) {
  if (corpus.format() != TokenFormat::kBytes) return "";
  for (const Corpus::Source& source : corpus.sources()) {
    const FileFormat* format = FormatWithoutText(source.name, source.tokens);
    if (format == nullptr) continue;
    return absl::StrCat("'", source.name, "' is a ", format->name,
                        ", whose bytes are read as if they were text: ", format->remedy);
  }
  return "";
}

std::string MaskOf(const std::string& path) { return absl::StrCat(path, kMaskSuffix); }

}  // namespace weft
