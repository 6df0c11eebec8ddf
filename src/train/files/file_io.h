// File access by descriptor: complete reads and writes at an offset, with errors that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft {

// The status of an errno value, with the message "cannot <what> '<path>': <reason>". Codes: kNotFound (no
// such path), kPermissionDenied, kResourceExhausted (the disk or a table of open files is full, or no
// memory), kUnavailable (the device or the file server has failed or does not answer: the file itself may be
// whole), kDataLoss (anything else).
absl::Status ErrnoStatus(int error, const char* what, const std::string& path);

// An open regular file. The destructor closes it.
class File {
 public:
  // Never blocks. Errors: kDataLoss (the path leads to a folder, a FIFO or a device), and those of the
  // system.
  static absl::StatusOr<File> OpenForReading(const std::string& path);
  // Creates a file. Errors: kDataLoss (the path exists, even as a dangling link), and those of the system.
  static absl::StatusOr<File> CreateNew(const std::string& path) { return CreateNew(path, path); }
  // `shown`: the name in errors, for a temporary file that the user does not know.
  static absl::StatusOr<File> CreateNew(const std::string& path, const std::string& shown);
  // Opens an existing file, to write parts of it. Does not follow a link in the last part of the path.
  static absl::StatusOr<File> OpenForUpdate(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  absl::StatusOr<int64_t> Size() const;
  // Sets the size of an empty file and reserves space for it, if the file system can. The bytes are zero.
  absl::Status Reserve(int64_t bytes) const;
  // Errors: kDataLoss (also if the file ends before the range does).
  absl::Status ReadAt(int64_t offset, void* out, size_t bytes) const;
  // The whole content. Errors: kDataLoss (it has more than `max_bytes`, or became shorter).
  absl::StatusOr<std::string> ReadAll(int64_t max_bytes) const;
  absl::Status WriteAt(int64_t offset, const void* data, size_t bytes) const;
  // Begins to flush a range to the device, without waiting. Close reports its errors.
  void StartFlush(int64_t offset, int64_t bytes) const;
  // Flushes to the device and closes. Reports errors that the destructor could not report.
  absl::Status Close();

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
};

// Reads a file of at most `max_bytes`. Errors: those of OpenForReading and ReadAll.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes);
// Errors: kDataLoss (`path` is a folder, a FIFO, a socket or a device, or a link to one of the last three or
// into /proc). A rename would replace even a device.
absl::Status CheckReplaceable(const std::string& path);
// Writes a file with a new name beside `path`, and renames it to `path`. No reader sees an incomplete file,
// and a link at `path` is replaced rather than followed. Leaves nothing behind after an error. Errors: those
// of CheckReplaceable, too.
absl::Status WriteWholeFile(const std::string& path, std::string_view content);
// True if a WriteWholeFile of `file` that was killed may have left a file of this name beside it.
bool IsPartialFile(std::string_view name, std::string_view file);
// Flushes a folder's entries to the device.
absl::Status SyncFolder(const std::string& path);
// Random hexadecimal digits for names of temporary files, which no two calls on any hosts share.
std::string UniqueSuffix();

}  // namespace weft
