// File access by descriptor: complete reads and writes at an offset, with errors that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft {

// The status of an errno value, with the message "cannot <what> '<path>': <reason>". Codes: kNotFound (no
// such path), kPermissionDenied, kResourceExhausted (the disk is full), kDataLoss (anything else).
absl::Status ErrnoStatus(int error, const char* what, const std::string& path);

// An open file. The destructor closes it.
class File {
 public:
  static absl::StatusOr<File> OpenForReading(const std::string& path);
  // Creates the file, or opens an existing one without truncating it.
  static absl::StatusOr<File> OpenForWriting(const std::string& path);
  // Opens an existing file, to write parts of it.
  static absl::StatusOr<File> OpenForUpdate(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  absl::StatusOr<int64_t> Size() const;
  // Sets the size. New bytes are zero.
  absl::Status Resize(int64_t bytes) const;
  // Errors: kDataLoss (also if the file ends before the range does).
  absl::Status ReadAt(int64_t offset, void* out, size_t bytes) const;
  absl::Status WriteAt(int64_t offset, const void* data, size_t bytes) const;
  // Flushes to the device and closes. Reports errors that the destructor could not report.
  absl::Status Close();

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
};

absl::StatusOr<std::string> ReadWholeFile(const std::string& path);
// Writes "<path>.partial" and renames it, so that no reader sees an incomplete file.
absl::Status WriteWholeFile(const std::string& path, const std::string& content);

}  // namespace weft
