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

using internal::FreeList;

namespace {

constexpr int kPoison = 0xFF;

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  pool_ = std::exchange(other.pool_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Buffer::~Buffer() { Reset(); }

void Buffer::Reset() {
  if (pool_ != nullptr) pool_->Release(data_, bytes_);
  pool_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

class BufferPool::Impl {
 public:
  Impl(NodeHeap& heap, std::string name) : heap_(heap), name_(std::move(name)) {}

  ~Impl() {
    WEFT_CHECK(in_use_bytes_ == 0, absl::StrCat("buffer pool ", name_, " goes before its buffers"));
    Trim();
  }

  absl::StatusOr<std::byte*> Acquire(size_t bytes) {
    const std::lock_guard lock(mutex_);
    WEFT_ASSIGN_OR_RETURN(std::byte * block, TakeIdleOrNew(bytes));
    in_use_bytes_ += FreeList::BlockBytes(bytes);
    peak_bytes_ = std::max(peak_bytes_, in_use_bytes_);
    return block;
  }

  void Release(std::byte* block, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t size = FreeList::BlockBytes(bytes);
    if (heap_.poisons_released()) std::memset(block, kPoison, size);
    idle_[size].push_back(block);
    idle_bytes_ += size;
    in_use_bytes_ -= size;
  }

  void Trim() {
    const std::lock_guard lock(mutex_);
    ReturnIdle();
  }

  void ResetPeak() {
    const std::lock_guard lock(mutex_);
    peak_bytes_ = in_use_bytes_;
  }

  size_t Read(size_t Impl::*figure) const {
    const std::lock_guard lock(mutex_);
    return this->*figure;
  }

  std::string_view name() const { return name_; }

 private:
  friend class BufferPool;

  absl::StatusOr<std::byte*> TakeIdleOrNew(size_t bytes) {
    const auto idle = idle_.find(FreeList::BlockBytes(bytes));
    if (idle != idle_.end()) {
      std::byte* block = idle->second.back();
      idle->second.pop_back();
      idle_bytes_ -= idle->first;
      if (idle->second.empty()) idle_.erase(idle);
      return block;
    }
    absl::StatusOr<std::byte*> block = heap_.Allocate(bytes);
    if (!block.ok() && idle_bytes_ > 0) {
      // Idle blocks of other sizes may be what is in the way.
      ReturnIdle();
      block = heap_.Allocate(bytes);
    }
    if (block.ok()) return block;
    return Annotate(block.status(), absl::StrCat("buffer pool ", name_, " (", in_use_bytes_,
                                                 " bytes in use, ", idle_bytes_, " idle)"));
  }

  void ReturnIdle() {
    for (const auto& [size, blocks] : idle_) {
      for (std::byte* block : blocks) heap_.Free(block);
    }
    idle_.clear();
    idle_bytes_ = 0;
  }

  NodeHeap& heap_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::map<size_t, std::vector<std::byte*>> idle_;  // By block size; no empty lists.
  size_t idle_bytes_ = 0;
  size_t in_use_bytes_ = 0;
  size_t peak_bytes_ = 0;
};

BufferPool::BufferPool(NodeHeap& heap, std::string name)
    : impl_(std::make_unique<Impl>(heap, std::move(name))) {}
BufferPool::~BufferPool() = default;

absl::StatusOr<Buffer> BufferPool::Acquire(size_t bytes) {
  WEFT_ASSIGN_OR_RETURN(std::byte * block, impl_->Acquire(bytes));
  return Buffer(this, block, bytes);
}
void BufferPool::Release(std::byte* data, size_t bytes) { impl_->Release(data, bytes); }

size_t BufferPool::in_use_bytes() const { return impl_->Read(&Impl::in_use_bytes_); }
size_t BufferPool::peak_bytes() const { return impl_->Read(&Impl::peak_bytes_); }
size_t BufferPool::idle_bytes() const { return impl_->Read(&Impl::idle_bytes_); }
void BufferPool::ResetPeak() { impl_->ResetPeak(); }
void BufferPool::Trim() { impl_->Trim(); }
std::string_view BufferPool::name() const { return impl_->name(); }

}  // namespace weft
