// A shared mapping of a file in memory, for tests. It lies where the huge pages of the file fit.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <sys/mman.h>

#include <gtest/gtest.h>

#include "weft/core/huge_pages.h"

namespace weft::testing {

class SharedMapping {
 public:
  explicit SharedMapping(size_t bytes) : SharedMapping(bytes, bytes) {}
  // The file may be shorter: its pages past the end cannot be used.
  SharedMapping(size_t bytes, size_t file_bytes)
      : bytes_(bytes), file_(memfd_create("shared_mapping", MFD_CLOEXEC)), base_(ReserveAddresses(bytes, 0)) {
    EXPECT_EQ(ftruncate(file_, static_cast<off_t>(file_bytes)), 0);
    EXPECT_EQ(mmap(base_, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, 0), base_);
  }
  ~SharedMapping() {
    munmap(base_, bytes_);
    close(file_);
  }
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  int file_;
  std::byte* base_;
};

// True if this kernel makes huge pages of shared memory when it is asked.
inline bool CollapsesSharedMemory() {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers do not have.
  if (HugePageBytes() == 0) return false;
  const SharedMapping mapping(HugePageBytes());
  *mapping.base() = std::byte{1};
  return madvise(mapping.base(), mapping.bytes(), kCollapse) == 0;
}

}  // namespace weft::testing
