// Heap of memory that belongs to this process alone, in one range of addresses.
//
// Blocks of a program that repeats its steps lie side by side: the smallest hole that fits is taken,
// neighboring holes are merged, and no smaller blocks of other users lie between. The heap then holds little
// more memory than its blocks did at their peak. It keeps that memory until ReleaseHoles.
//
// Thread safety: all members may be called from any thread. A forked child has the blocks of its parent, but
//   the heap gives it none and takes none back: a lock of the parent may be held forever.
// Lifetime: blocks end with the heap.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <sys/types.h>

#include <absl/status/statusor.h>

namespace weft {

namespace internal {
class FreeList;
}  // namespace internal

class PrivateHeap {
 public:
  // Reserves addresses for `bytes` bytes; memory is taken when blocks are first written.
  // Errors: kResourceExhausted (the kernel refused; has its message and the bytes).
  static absl::StatusOr<std::unique_ptr<PrivateHeap>> Create(size_t bytes);
  ~PrivateHeap();
  PrivateHeap(const PrivateHeap&) = delete;
  PrivateHeap& operator=(const PrivateHeap&) = delete;

  // Returns a block of at least `bytes`, 64-byte aligned, with undefined contents; null if no hole is large
  // enough, or in a forked child.
  std::byte* Allocate(size_t bytes);
  // REQUIRES: `block` is one of Allocate, of this process or its parent.
  void Free(std::byte* block);
  bool Contains(const void* pointer) const;
  // Returns the memory of all holes to the system.
  void ReleaseHoles();

  // Sizes of the blocks in use, each rounded up to a multiple of 64 bytes. 0 in a forked child.
  size_t in_use_bytes() const;

 private:
  PrivateHeap(std::byte* base, size_t bytes);
  bool is_of_this_process() const;

  std::byte* const base_;
  const size_t bytes_;
  const pid_t process_;
  mutable std::mutex mutex_;
  const std::unique_ptr<internal::FreeList> blocks_;
};

}  // namespace weft
