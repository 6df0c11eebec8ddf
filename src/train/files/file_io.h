// Files by descriptor: whole reads and writes at an offset, with errors that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft {

// "what 'path': reason", with the status code that fits the errno value: kNotFound for a path that is not
// there, kPermissionDenied, kResourceExhausted for a full disk, else kDataLoss.
absl::Status ErrnoStatus(int error, const char* what, const std::string& path);

// An open file; closes it.
class File {
 public:
  static absl::StatusOr<File> OpenForReading(const std::string& path);
  // Creates the file, or opens the one that is there and keeps its content.
  static absl::StatusOr<File> OpenForWriting(const std::string& path);
  // Opens a file that must be there, to write parts of it.
  static absl::StatusOr<File> OpenForUpdate(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  absl::StatusOr<int64_t> Size() const;
  // Sets the size; new bytes are zero.
  absl::Status Resize(int64_t bytes) const;
  // Errors: kDataLoss (the file ends before).
  absl::Status ReadAt(int64_t offset, void* out, size_t bytes) const;
  absl::Status WriteAt(int64_t offset, const void* data, size_t bytes) const;
  // Flushes to the device and closes; what a destructor cannot report.
  absl::Status Close();

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
};

absl::StatusOr<std::string> ReadWholeFile(const std::string& path);
// Writes beside `path` and renames, so that no reader ever meets half a file.
absl::Status WriteWholeFile(const std::string& path, const std::string& content);

}  // namespace weft
