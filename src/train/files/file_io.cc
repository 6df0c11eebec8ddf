#include "src/train/files/file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include "weft/core/status.h"

namespace weft {
namespace {

constexpr absl::string_view kPartial = ".partial-";
constexpr size_t kSuffixDigits = 16;  // Of UniqueSuffix.

}  // namespace

absl::Status ErrnoStatus(int error, const char* what, const std::string& path) {
  const std::string message =
      absl::StrCat("cannot ", what, " '", path, "': ", std::generic_category().message(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case EIO:
    case EREMOTEIO:
    case ESTALE:
    case ETIMEDOUT:
    case EAGAIN:  // Another host or process holds a lease.
    case ENOTCONN:
    case ECONNABORTED:
    case ECONNRESET:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return absl::UnavailableError(message);
    default:
      return absl::DataLossError(message);
  }
}

absl::StatusOr<File> File::OpenForReading(const std::string& path) {
  // Without O_NONBLOCK the open of a FIFO waits for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    return ErrnoStatus(errno, "open", path);
  }
  File file(fd, path);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    return ErrnoStatus(errno, "open", path);
  }
  if (S_ISDIR(info.st_mode)) {
    return ErrnoStatus(EISDIR, "read", path);
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::DataLossError(absl::StrCat(
        "cannot read '", path, "': it is a FIFO, a socket or a device: ", "copy its content to a file"));
  }
  return file;
}

absl::StatusOr<File> File::CreateNew(const std::string& path, const std::string& shown) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  return fd < 0 ? absl::StatusOr<File>(ErrnoStatus(errno, "write", shown)) : File(fd, shown);
}

absl::StatusOr<File> File::OpenForUpdate(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  return fd < 0 ? absl::StatusOr<File>(ErrnoStatus(errno, "write", path)) : File(fd, path);
}

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

absl::StatusOr<int64_t> File::Size() const {
  struct stat info {};
  if (fstat(fd_, &info) != 0) {
    return ErrnoStatus(errno, "read", path_);
  }
  return static_cast<int64_t>(info.st_size);
}

absl::Status File::Reserve(int64_t bytes) const {
  int result = 0;
  do {
    result = fallocate(fd_, 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
    result = ftruncate(fd_, bytes);
  }
  return result == 0 ? absl::OkStatus() : ErrnoStatus(errno, "write", path_);
}

absl::Status File::ReadAt(int64_t offset, void* out, size_t bytes) const {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(fd_, to, bytes, offset);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return ErrnoStatus(errno, "read", path_);
    }
    if (got == 0) {
      return absl::DataLossError(
          absl::StrCat("'", path_, "' ends at byte ", offset, ", but ", bytes,
                       " more bytes are needed: it is truncated, or became shorter during the run"));
    }
    to += got;
    offset += got;
    bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status File::WriteAt(int64_t offset, const void* data, size_t bytes) const {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = pwrite(fd_, from, bytes, offset);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put < 0) {
      return ErrnoStatus(errno, "write", path_);
    }
    from += put;
    offset += put;
    bytes -= static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

void File::StartFlush(int64_t offset, int64_t bytes) const {
  // A file system that cannot do this flushes in Close.
  sync_file_range(fd_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

absl::Status File::Close() {
  const int fd = std::exchange(fd_, -1);
  const bool flushed = fsync(fd) == 0;
  const int flush_error = errno;
  if (close(fd) != 0) {
    return ErrnoStatus(errno, "write", path_);
  }
  return flushed ? absl::OkStatus() : ErrnoStatus(flush_error, "write", path_);
}

absl::StatusOr<std::string> File::ReadAll(int64_t max_bytes) const {
  WEFT_ASSIGN_OR_RETURN(const int64_t size, Size());
  if (size > max_bytes) {
    return absl::DataLossError(absl::StrCat("'", path_, "' has ", size,
                                            " bytes, but a file of this kind has at most ", max_bytes,
                                            ": it is damaged, or another file"));
  }
  std::string content(static_cast<size_t>(size), '\0');
  WEFT_RETURN_IF_ERROR(ReadAt(0, content.data(), content.size()));
  return content;
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes) {
  WEFT_ASSIGN_OR_RETURN(const File file, File::OpenForReading(path));
  return file.ReadAll(max_bytes);
}

absl::Status CheckReplaceable(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return absl::OkStatus();
  if (S_ISDIR(info.st_mode)) return ErrnoStatus(EISDIR, "write", path);
  if (S_ISLNK(info.st_mode)) {
    std::error_code error;
    const bool leads_to_descriptor =
        absl::StartsWith(std::filesystem::read_symlink(path, error).native(), "/proc/");
    const bool leads_to_file =
        stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode) || S_ISDIR(info.st_mode);
    if (leads_to_file && !leads_to_descriptor) return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("cannot write '", path,
                                          "': it is a FIFO, a socket or a device, or a link to one or to an "
                                          "open file, which a file would replace: give the name of a file"));
}

absl::Status WriteWholeFile(const std::string& path, std::string_view content) {
  WEFT_RETURN_IF_ERROR(CheckReplaceable(path));
  const std::string partial = absl::StrCat(path, kPartial, UniqueSuffix());
  WEFT_ASSIGN_OR_RETURN(File file, File::CreateNew(partial, path));
  absl::Status status = file.WriteAt(0, content.data(), content.size());
  if (status.ok()) {
    status = file.Close();
  }
  if (status.ok() && std::rename(partial.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, "write", path);
  }
  if (!status.ok()) {
    unlink(partial.c_str());
  }
  return status;
}

bool IsPartialFile(std::string_view name, std::string_view file) {
  absl::string_view rest(name.data(), name.size());
  return absl::ConsumePrefix(&rest, absl::string_view(file.data(), file.size())) &&
         absl::ConsumePrefix(&rest, kPartial) && rest.size() == kSuffixDigits &&
         std::all_of(rest.begin(), rest.end(), absl::ascii_isxdigit);
}

absl::Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return ErrnoStatus(errno, "open", path);
  }
  // Some file systems cannot flush a folder.
  const bool flushed = fsync(fd) == 0 || errno == EINVAL || errno == EBADF;
  const int error = errno;
  close(fd);
  return flushed ? absl::OkStatus() : ErrnoStatus(error, "write", path);
}

std::string UniqueSuffix() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

}  // namespace weft
