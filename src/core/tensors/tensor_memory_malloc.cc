// Tensor allocator without a cache. Used with sanitizers, which then see every allocation and free.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "src/core/tensors/tensor_memory.h"

namespace weft::internal {
namespace {

std::atomic<int64_t> allocated_from_system = 0;

}  // namespace

std::shared_ptr<void> AllocateTensorMemory(size_t bytes) {
  constexpr size_t kAlignment = 64;
  const size_t size = std::max<size_t>((bytes + kAlignment - 1) / kAlignment, 1) * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, size);
  if (memory == nullptr) throw std::bad_alloc();
  allocated_from_system += static_cast<int64_t>(size);
  return {memory, std::free};
}

int64_t TensorMemoryFromSystem() { return allocated_from_system; }

}  // namespace weft::internal
