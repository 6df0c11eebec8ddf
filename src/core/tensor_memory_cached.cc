// Keeps the memory of tensors for the next ones of their size. Every step of a training run allocates the
// same tensors; malloc gives blocks of megabytes back to the system, and touching their pages anew takes a
// tenth of a forward pass.
//
// What is held, used or not, stays within 5/4 of the most that was ever used at once: beyond, unused blocks
// are freed, the largest first.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "src/core/tensor_memory.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

constexpr size_t kAlignment = 64;

// Sizes are rounded up by at most an eighth, so that tensors of nearly the same size share blocks.
size_t BlockSize(size_t bytes) {
  const size_t step = std::max(kAlignment, std::bit_floor(bytes) / 8);
  return (bytes / step + 1) * step;
}

class BlockCache {
 public:
  void* Take(size_t size) {
    const std::lock_guard lock(mutex_);
    used_ += size;
    most_used_ = std::max(most_used_, used_);
    if (const auto found = unused_.find(size); found != unused_.end()) {
      void* block = found->second.back();
      RemoveLast(found);
      return block;
    }
    while (!unused_.empty() && used_ + unused_bytes_ > most_used_ / 4 * 5) FreeLargest();
    void* block = std::aligned_alloc(kAlignment, size);
    while (block == nullptr && !unused_.empty()) {
      FreeLargest();
      block = std::aligned_alloc(kAlignment, size);
    }
    taken_ += size;
    return block;
  }

  void Give(void* block, size_t size) {
    const std::lock_guard lock(mutex_);
    used_ -= size;
    unused_bytes_ += size;
    unused_[size].push_back(block);
  }

  size_t taken() const {
    const std::lock_guard lock(mutex_);
    return taken_;
  }

 private:
  using Unused = std::map<size_t, std::vector<void*>>;

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
  Unused unused_;  // By size; no list is empty.
  size_t unused_bytes_ = 0;
  size_t used_ = 0;
  size_t most_used_ = 0;
  size_t taken_ = 0;  // Ever.
};

// One for the process, as malloc is. Never destroyed: a tensor may outlive any other object.
BlockCache& Cache() {
  static auto* const cache = new BlockCache;
  return *cache;
}

}  // namespace

std::shared_ptr<void> AllocateTensorMemory(size_t bytes) {
  const size_t size = BlockSize(bytes);
  void* memory = Cache().Take(size);
  WEFT_CHECK(memory != nullptr, absl::StrCat("out of memory for a tensor of ", bytes, " bytes"));
  return {memory, [size](void* block) { Cache().Give(block, size); }};
}

int64_t TakenTensorMemory() { return static_cast<int64_t>(Cache().taken()); }

}  // namespace weft::internal
