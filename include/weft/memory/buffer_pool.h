// Pool of node-heap blocks: blocks that one step releases are reused by the next step without heap calls.
//
// Note [Idle blocks]
// Problem: requests of ever different sizes, such as those of packed documents, fit no idle block exactly. A
// pool that only keeps blocks grows with every step, and takes the memory that another pool needs.
// Rule: a request takes the smallest idle block that is at most an eighth larger. A pool that asks its heap
// for a block first returns idle blocks, the largest first, until bytes in use and idle bytes together are
// within 5/4 of the peak of bytes in use, or at most a mebibyte is idle. A heap without room for a request
// first takes back the idle blocks of all its pools.
// Why it suffices: steps of equal requests find all their blocks. Otherwise a pool holds at most 9/8 of its
// bytes in use, and idle bytes up to that limit.
//
// Thread safety: all members may be called from any thread of the rank; a Buffer is a move-only value.
// Lifetime: the heap must outlive the pool and its buffers. A buffer may outlive its pool; its block then
// returns to the heap.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <absl/status/statusor.h>

#include "weft/memory/node_heap.h"

namespace weft {

namespace internal {
class PooledBlocks;
}

// Owner of one pool block; its destructor returns the block to the pool. A moved-from Buffer is empty.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }
  // Returns the block now. The Buffer is empty afterwards.
  void Reset();

 private:
  friend class BufferPool;
  Buffer(std::shared_ptr<internal::PooledBlocks> blocks, std::byte* data, size_t bytes, size_t block_bytes);
  std::shared_ptr<internal::PooledBlocks> blocks_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t block_bytes_ = 0;  // Size of the block, which may be larger than bytes_.
};

class BufferPool {
 public:
  // `name` appears in error messages and reports.
  BufferPool(NodeHeap& heap, std::string name);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Returns a block of at least `bytes` with undefined contents. Reuses an idle block if one fits: Note [Idle
  // blocks]. bytes() of the result is the requested size.
  // Errors: kResourceExhausted (names the pool, its bytes in use and its idle bytes; no pool of the heap has
  // idle blocks then).
  absl::StatusOr<Buffer> Acquire(size_t bytes);

  // Requested sizes, each rounded up to a multiple of 64 bytes.
  size_t in_use_bytes() const;
  size_t peak_bytes() const;  // Largest in_use_bytes() since ResetPeak.
  size_t idle_bytes() const;  // Sizes of the idle blocks.
  size_t free_bytes() const;  // Bytes that the heap has free, and idle_bytes(). They need not lie end to end.
  void ResetPeak();           // Sets the peak to in_use_bytes().
  void Trim();                // Returns idle blocks to the heap.
  std::string_view name() const;

 private:
  std::shared_ptr<internal::PooledBlocks> blocks_;
};

}  // namespace weft
