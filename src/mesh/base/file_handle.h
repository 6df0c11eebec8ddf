// Owner of a file descriptor, which the destructor closes.
#pragma once

#include <unistd.h>

#include <utility>

namespace weft::internal {

class FileHandle {
 public:
  FileHandle() = default;
  // Negative: no descriptor.
  explicit FileHandle(int descriptor) : descriptor_(descriptor) {}
  FileHandle(FileHandle&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~FileHandle() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  // False: see errno. REQUIRES: is_open().
  bool Close() { return close(std::exchange(descriptor_, -1)) == 0; }
  bool is_open() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

}  // namespace weft::internal
