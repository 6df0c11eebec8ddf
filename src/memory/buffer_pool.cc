#include "weft/memory/buffer_pool.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "src/memory/free_list.h"
#include "weft/core/status.h"

namespace weft {

namespace {

constexpr int kPoison = 0xFF;  // All bits set: NaN in every floating-point dtype.

}  // namespace

namespace internal {

// State that a pool shares with its buffers. Destroyed with the last of them.
class PooledBlocks {
 public:
  PooledBlocks(NodeHeap& heap, std::string name) : heap_(heap), name_(std::move(name)) {}
  ~PooledBlocks() { Trim(); }
  PooledBlocks(const PooledBlocks&) = delete;
  PooledBlocks& operator=(const PooledBlocks&) = delete;

  absl::StatusOr<std::byte*> Acquire(size_t bytes) {
    const std::lock_guard lock(mutex_);
    WEFT_ASSIGN_OR_RETURN(std::byte * block, ReuseOrAllocate(bytes));
    usage_.in_use_bytes += FreeList::BlockBytes(bytes);
    usage_.peak_bytes = std::max(usage_.peak_bytes, usage_.in_use_bytes);
    return block;
  }

  void Release(std::byte* block, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t size = FreeList::BlockBytes(bytes);
    if (heap_.poisons_released()) std::memset(block, kPoison, size);
    idle_[size].push_back(block);
    usage_.idle_bytes += size;
    usage_.in_use_bytes -= size;
  }

  void Trim() {
    const std::lock_guard lock(mutex_);
    FreeIdle();
  }

  void ResetPeak() {
    const std::lock_guard lock(mutex_);
    usage_.peak_bytes = usage_.in_use_bytes;
  }

  struct Usage {
    size_t in_use_bytes = 0;
    size_t peak_bytes = 0;
    size_t idle_bytes = 0;
  };
  Usage usage() const {
    const std::lock_guard lock(mutex_);
    return usage_;
  }
  std::string_view name() const { return name_; }

 private:
  absl::StatusOr<std::byte*> ReuseOrAllocate(size_t bytes) {
    const auto idle = idle_.find(FreeList::BlockBytes(bytes));
    if (idle != idle_.end()) {
      std::byte* block = idle->second.back();
      idle->second.pop_back();
      usage_.idle_bytes -= idle->first;
      if (idle->second.empty()) idle_.erase(idle);
      return block;
    }
    absl::StatusOr<std::byte*> block = heap_.Allocate(bytes);
    if (!block.ok() && usage_.idle_bytes > 0) {
      // Idle blocks of other sizes may occupy the memory.
      FreeIdle();
      block = heap_.Allocate(bytes);
    }
    if (block.ok()) return block;
    return Annotate(block.status(), absl::StrCat("buffer pool ", name_, " (", usage_.in_use_bytes,
                                                 " bytes in use, ", usage_.idle_bytes, " idle)"));
  }

  void FreeIdle() {
    for (const auto& [size, blocks] : idle_) {
      for (std::byte* block : blocks) heap_.Free(block);
    }
    idle_.clear();
    usage_.idle_bytes = 0;
  }

  NodeHeap& heap_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::map<size_t, std::vector<std::byte*>> idle_;  // By block size; no list is empty.
  Usage usage_;
};

}  // namespace internal

Buffer::Buffer(std::shared_ptr<internal::PooledBlocks> blocks, std::byte* data, size_t bytes)
    : blocks_(std::move(blocks)), data_(data), bytes_(bytes) {}

Buffer::Buffer(Buffer&& other) noexcept
    : blocks_(std::move(other.blocks_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  blocks_ = std::move(other.blocks_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Buffer::~Buffer() { Reset(); }

void Buffer::Reset() {
  if (blocks_ != nullptr) blocks_->Release(data_, bytes_);
  blocks_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

BufferPool::BufferPool(NodeHeap& heap, std::string name)
    : blocks_(std::make_shared<internal::PooledBlocks>(heap, std::move(name))) {}
BufferPool::~BufferPool() = default;

absl::StatusOr<Buffer> BufferPool::Acquire(size_t bytes) {
  WEFT_ASSIGN_OR_RETURN(std::byte * block, blocks_->Acquire(bytes));
  return Buffer(blocks_, block, bytes);
}

size_t BufferPool::in_use_bytes() const { return blocks_->usage().in_use_bytes; }
size_t BufferPool::peak_bytes() const { return blocks_->usage().peak_bytes; }
size_t BufferPool::idle_bytes() const { return blocks_->usage().idle_bytes; }
void BufferPool::ResetPeak() { blocks_->ResetPeak(); }
void BufferPool::Trim() { blocks_->Trim(); }
std::string_view BufferPool::name() const { return blocks_->name(); }

}  // namespace weft
