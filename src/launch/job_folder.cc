#include "src/launch/job_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft::internal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMemoryFileSystem = "/dev/shm";

std::string NamePrefix() { return absl::StrCat("weft-launch.", getuid(), "."); }

std::string ParentFolder() {
  if (access(kMemoryFileSystem, W_OK | X_OK) == 0) return kMemoryFileSystem;
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  return error ? "/tmp" : folder.string();
}

std::string NewPath() {
  uint64_t digits = 0;
  WEFT_CHECK(getrandom(&digits, sizeof(digits), 0) == sizeof(digits), "the kernel gives no random bytes");
  return absl::StrCat(ParentFolder(), "/", NamePrefix(), absl::Hex(digits, absl::kZeroPad16));
}

absl::Status FolderError(const std::string& path) {
  return absl::InternalError(absl::StrCat("cannot create the folder '", path,
                                          "' for the files of Open MPI: ", std::strerror(errno)));
}

// True if `path` still names the open folder.
bool IsLinked(int fd, const std::string& path) {
  struct stat own = {};
  struct stat named = {};
  return fstat(fd, &own) == 0 && stat(path.c_str(), &named) == 0 && own.st_dev == named.st_dev &&
         own.st_ino == named.st_ino;
}

int OpenFolder(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

// Removes the folder if no other process holds it. Releases `fd`.
void RemoveIfUnused(int fd, const std::string& path) {
  std::error_code error;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, error);
  close(fd);
}

}  // namespace

JobFolder::JobFolder(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

JobFolder::JobFolder(JobFolder&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

JobFolder::~JobFolder() {
  if (fd_ >= 0) RemoveIfUnused(fd_, path_);
}

absl::StatusOr<JobFolder> JobFolder::Create() { return Join(NewPath()); }

absl::StatusOr<JobFolder> JobFolder::Join(const std::string& path) {
  for (;;) {
    if (mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) return FolderError(path);
    const int fd = OpenFolder(path);
    if (fd < 0 && errno == ENOENT) continue;  // Its last holder has removed it.
    if (fd < 0) return FolderError(path);
    if (flock(fd, LOCK_SH) != 0) {
      close(fd);
      return FolderError(path);
    }
    if (IsLinked(fd, path)) return JobFolder(fd, path);
    close(fd);  // It was removed before the lock.
  }
}

void JobFolder::RemoveAbandoned(const std::string& path) {
  std::error_code error;
  const fs::path parent = fs::path(path).parent_path();
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    if (!absl::StartsWith(entry->path().filename().string(), NamePrefix()) || entry->path() == path) continue;
    if (const int fd = OpenFolder(entry->path()); fd >= 0) RemoveIfUnused(fd, entry->path());
  }
}

}  // namespace weft::internal
