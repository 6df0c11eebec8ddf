// Tensor allocator that caches freed blocks by size.
//
// Every step of a training run allocates the same tensors. malloc returns blocks of megabytes to the system,
// and the page faults of allocating them again take a tenth of a forward pass.
//
// Used and cached bytes together stay within 5/4 of the peak of used bytes. Above that limit, cached blocks
// are freed, the largest first.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "src/core/tensors/tensor_memory.h"
#include "weft/core/huge_pages.h"

namespace weft::internal {
namespace {

constexpr size_t kAlignment = 64;

// Rounds a size up by at most an eighth, so that tensors of similar sizes can reuse each other's blocks.
size_t BlockSize(size_t bytes) {
  const size_t step = std::max(kAlignment, std::bit_floor(bytes) / 8);
  return std::max<size_t>((bytes + step - 1) / step, 1) * step;
}

// Null if there is no memory.
void* AllocateBlock(size_t size) {
  void* const block = std::aligned_alloc(kAlignment, size);
  if (block != nullptr) AdviseHugePages(static_cast<std::byte*>(block), size);
  return block;
}

class BlockCache {
 public:
  void* Allocate(size_t size) {
    const std::lock_guard lock(mutex_);
    void* block = nullptr;
    if (const auto found = unused_.find(size); found != unused_.end()) {
      block = found->second.back();
      RemoveLast(found);
    } else {
      block = AllocateFromSystem(size);
    }
    used_ += size;
    peak_used_ = std::max(peak_used_, used_);
    return block;
  }

  void Release(void* block, size_t size) {
    const std::lock_guard lock(mutex_);
    used_ -= size;
    unused_bytes_ += size;
    unused_[size].push_back(block);
  }

  size_t allocated_from_system() const {
    const std::lock_guard lock(mutex_);
    return allocated_from_system_;
  }

 private:
  using Unused = std::map<size_t, std::vector<void*>>;

  void* AllocateFromSystem(size_t size) {
    const size_t used = used_ + size;
    const size_t limit = std::max(peak_used_, used) / 4 * 5;
    while (!unused_.empty() && used + unused_bytes_ > limit) FreeLargest();
    void* block = AllocateBlock(size);
    while (block == nullptr && !unused_.empty()) {
      FreeLargest();
      block = AllocateBlock(size);
    }
    if (block == nullptr) throw std::bad_alloc();
    allocated_from_system_ += size;
    return block;
  }
  void RemoveLast(Unused::iterator blocks) {
    unused_bytes_ -= blocks->first;
    blocks->second.pop_back();
    if (blocks->second.empty()) unused_.erase(blocks);
  }
  void FreeLargest() {
    const auto largest = std::prev(unused_.end());
    std::free(largest->second.back());
    RemoveLast(largest);
  }

  mutable std::mutex mutex_;
  Unused unused_;  // By block size; no list is empty.
  size_t unused_bytes_ = 0;
  size_t used_ = 0;
  size_t peak_used_ = 0;
  size_t allocated_from_system_ = 0;  // Total so far; never decreases.
};

// One cache per process, like malloc. It is never destroyed, because a tensor may outlive any other object.
BlockCache& Cache() {
  static auto* const cache = new BlockCache;
  return *cache;
}

}  // namespace

std::shared_ptr<void> AllocateTensorMemory(size_t bytes) {
  const size_t size = BlockSize(bytes);
  return {Cache().Allocate(size), [size](void* block) { Cache().Release(block, size); }};
}

int64_t TensorMemoryFromSystem() { return static_cast<int64_t>(Cache().allocated_from_system()); }

}  // namespace weft::internal
