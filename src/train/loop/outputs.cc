#include "src/train/loop/outputs.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <sys/stat.h>

#include "src/train/files/file_io.h"
#include "weft/core/status.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Opens the file for writing; one that was not there goes again.
absl::Status CheckFile(const std::string& path) {
  const bool was_there = access(path.c_str(), F_OK) == 0;
  absl::Status status = File::OpenForWriting(path).status();
  if (status.ok() && !was_there) {
    unlink(path.c_str());
  }
  return status;
}

// The folder, or the nearest one above it that exists, can be written to.
absl::Status CheckFolder(const std::string& folder) {
  fs::path existing = fs::absolute(folder).lexically_normal();
  struct stat info {};
  while (stat(existing.c_str(), &info) != 0) {
    if (errno != ENOENT) {
      return ErrnoStatus(errno, "write to the folder", folder);
    }
    existing = existing.parent_path();
  }
  if (!S_ISDIR(info.st_mode)) {
    return ErrnoStatus(ENOTDIR, "write to the folder", folder);
  }
  return access(existing.c_str(), W_OK | X_OK) == 0 ? absl::OkStatus()
                                                    : ErrnoStatus(errno, "write to the folder", folder);
}

// The folder, and what would be replaced in it.
absl::Status CheckExport(const std::string& folder) {
  WEFT_RETURN_IF_ERROR(CheckFolder(folder));
  for (const char* name : {"model.safetensors", "config.json"}) {
    const std::string path = folder + "/" + name;
    if (access(path.c_str(), F_OK) == 0) {
      WEFT_RETURN_IF_ERROR(CheckFile(path));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOutputs(const OutputOptions& output) {
  if (!output.metrics_file.empty()) {
    WEFT_RETURN_IF_ERROR(CheckFile(output.metrics_file));
    WEFT_RETURN_IF_ERROR(CheckFile(ConfigPathBeside(output.metrics_file)));
  }
  return output.export_folder.empty() ? absl::OkStatus() : CheckExport(output.export_folder);
}

std::string ConfigPathBeside(const std::string& metrics_file) {
  return fs::path(metrics_file).replace_extension(".config.json");
}

}  // namespace weft
