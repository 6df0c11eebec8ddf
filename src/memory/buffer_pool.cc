#include "weft/memory/buffer_pool.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <absl/base/thread_annotations.h>

#include "src/memory/free_list.h"
#include "weft/core/mutex.h"
#include "weft/core/status.h"

namespace weft {

namespace {

// Idle bytes that a pool may keep in any case.
constexpr size_t kSmallIdleBytes = size_t{1} << 20;
constexpr int kPoison = 0xFF;  // All bits set: NaN in every floating-point dtype.

}  // namespace

namespace internal {

// State that a pool shares with its buffers. Destroyed with the last of them.
class PooledBlocks {
 public:
  struct Block {
    std::byte* data;
    size_t bytes;
  };

  PooledBlocks(NodeHeap& heap, std::string name)
      : heap_(heap), name_(std::move(name)), reclaimer_(heap.AddReclaimer([this] { Trim(); })) {}
  ~PooledBlocks() {
    heap_.RemoveReclaimer(reclaimer_);
    Trim();
  }
  PooledBlocks(const PooledBlocks&) = delete;
  PooledBlocks& operator=(const PooledBlocks&) = delete;

  absl::StatusOr<Block> Acquire(size_t bytes) {
    const size_t rounded = FreeList::BlockBytes(bytes);
    if (const std::optional<Block> idle = Reuse(rounded)) return *idle;
    // Not under the lock: the heap may take back the idle blocks of every pool.
    absl::StatusOr<std::byte*> data = heap_.Allocate(bytes);
    const MutexLock lock(mutex_);
    if (data.ok()) {
      CountAcquired(rounded);
      return Block{*data, rounded};
    }
    return Annotate(data.status(), absl::StrCat("buffer pool ", name_, " (", usage_.in_use_bytes,
                                                " bytes in use, ", usage_.idle_bytes, " idle)"));
  }

  void Release(Block block, size_t bytes) {
    if (heap_.poisons_released()) std::memset(block.data, kPoison, block.bytes);
    const MutexLock lock(mutex_);
    idle_[block.bytes].push_back(block.data);
    usage_.idle_bytes += block.bytes;
    usage_.in_use_bytes -= FreeList::BlockBytes(bytes);
  }

  void Trim() {
    const MutexLock lock(mutex_);
    while (!idle_.empty()) heap_.Free(TakeLast(std::prev(idle_.end())).data);
  }

  void ResetPeak() {
    const MutexLock lock(mutex_);
    usage_.peak_bytes = usage_.in_use_bytes;
  }

  struct Usage {
    size_t in_use_bytes = 0;
    size_t peak_bytes = 0;
    size_t idle_bytes = 0;
  };
  Usage usage() const {
    const MutexLock lock(mutex_);
    return usage_;
  }
  size_t heap_free_bytes() const { return heap_.segment_bytes() - heap_.allocated_bytes(); }
  std::string_view name() const { return name_; }

 private:
  using IdleBlocks = std::map<size_t, std::vector<std::byte*>>;

  // An idle block for a request of `bytes`, a multiple of 64. If none fits, makes room for a new one.
  std::optional<Block> Reuse(size_t bytes) {
    const MutexLock lock(mutex_);
    const auto idle = idle_.lower_bound(bytes);
    if (idle != idle_.end() && idle->first - bytes <= bytes / 8) {
      CountAcquired(bytes);
      return TakeLast(idle);
    }
    const size_t in_use = usage_.in_use_bytes + bytes;
    const size_t cap = std::max(largest_peak_, in_use) / 4 * 5;
    while (usage_.idle_bytes > kSmallIdleBytes && in_use + usage_.idle_bytes > cap) {
      heap_.Free(TakeLast(std::prev(idle_.end())).data);
    }
    return std::nullopt;
  }

  Block TakeLast(IdleBlocks::iterator blocks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Block block = {blocks->second.back(), blocks->first};
    usage_.idle_bytes -= block.bytes;
    blocks->second.pop_back();
    if (blocks->second.empty()) idle_.erase(blocks);
    return block;
  }

  void CountAcquired(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    usage_.in_use_bytes += bytes;
    usage_.peak_bytes = std::max(usage_.peak_bytes, usage_.in_use_bytes);
    largest_peak_ = std::max(largest_peak_, usage_.peak_bytes);
  }

  NodeHeap& heap_;
  const std::string name_;
  mutable Mutex mutex_;
  IdleBlocks idle_ ABSL_GUARDED_BY(mutex_);  // By block size; no list is empty.
  Usage usage_ ABSL_GUARDED_BY(mutex_);
  // Peak since the pool was created; ResetPeak does not change it.
  size_t largest_peak_ ABSL_GUARDED_BY(mutex_) = 0;
  const int reclaimer_;
};

}  // namespace internal

Buffer::Buffer(std::shared_ptr<internal::PooledBlocks> blocks, std::byte* data, size_t bytes,
               size_t block_bytes)
    : blocks_(std::move(blocks)), data_(data), bytes_(bytes), block_bytes_(block_bytes) {}

Buffer::Buffer(Buffer&& other) noexcept
    : blocks_(std::move(other.blocks_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      block_bytes_(std::exchange(other.block_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  blocks_ = std::move(other.blocks_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  block_bytes_ = std::exchange(other.block_bytes_, 0);
  return *this;
}

Buffer::~Buffer() { Reset(); }

void Buffer::Reset() {
  if (blocks_ == nullptr) return;
  blocks_->Release({data_, block_bytes_}, bytes_);
  blocks_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
  block_bytes_ = 0;
}

BufferPool::BufferPool(NodeHeap& heap, std::string name)
    : blocks_(std::make_shared<internal::PooledBlocks>(heap, std::move(name))) {}
BufferPool::~BufferPool() = default;

absl::StatusOr<Buffer> BufferPool::Acquire(size_t bytes) {
  WEFT_ASSIGN_OR_RETURN(const internal::PooledBlocks::Block block, blocks_->Acquire(bytes));
  return Buffer(blocks_, block.data, bytes, block.bytes);
}

size_t BufferPool::in_use_bytes() const { return blocks_->usage().in_use_bytes; }
size_t BufferPool::peak_bytes() const { return blocks_->usage().peak_bytes; }
size_t BufferPool::idle_bytes() const { return blocks_->usage().idle_bytes; }
size_t BufferPool::free_bytes() const { return blocks_->heap_free_bytes() + idle_bytes(); }
void BufferPool::ResetPeak() { blocks_->ResetPeak(); }
void BufferPool::Trim() { blocks_->Trim(); }
std::string_view BufferPool::name() const { return blocks_->name(); }

}  // namespace weft
