// Reuses blocks of a node heap: what a step releases, the next step gets back without touching the heap.
//
// Thread safety: all members may be called from any thread of the rank; a Buffer is a move-only value.
// Lifetime: the heap must outlive the pool and its buffers. A buffer may outlive its pool: its block then
// goes
//   back to the heap.
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

// A block that goes back to its pool when it is destroyed. Empty after a move.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }
  // Gives the block back now.
  void Reset();

 private:
  friend class BufferPool;
  Buffer(std::shared_ptr<internal::PooledBlocks> blocks, std::byte* data, size_t bytes);
  std::shared_ptr<internal::PooledBlocks> blocks_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

class BufferPool {
 public:
  // `name` appears in errors and reports.
  BufferPool(NodeHeap& heap, std::string name);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A block of at least `bytes`, contents undefined; an idle one of the same size if there is one. bytes() of
  // the result is what was asked. Errors: kResourceExhausted (names the pool, what is in use and what is
  // idle).
  absl::StatusOr<Buffer> Acquire(size_t bytes);

  // All figures count what the heap gave: whole multiples of 64 bytes.
  size_t in_use_bytes() const;
  size_t peak_bytes() const;  // Largest in_use_bytes() since ResetPeak.
  size_t idle_bytes() const;
  void ResetPeak();  // The peak becomes what is in use now.
  void Trim();       // Returns idle blocks to the heap.
  std::string_view name() const;

 private:
  std::shared_ptr<internal::PooledBlocks> blocks_;
};

}  // namespace weft
