// Tensor allocator without a cache. Used with sanitizers, which then see every allocation and free.
#include <atomic>
#include <cstdlib>

#include "src/core/tensor_memory.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

std::atomic<int64_t> allocated_from_system = 0;

}  // namespace

std::shared_ptr<void> AllocateTensorMemory(size_t bytes) {
  constexpr size_t kAlignment = 64;
  const size_t size = (bytes / kAlignment + 1) * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, size);
  WEFT_CHECK(memory != nullptr, absl::StrCat("out of memory for a tensor of ", bytes, " bytes"));
  allocated_from_system += static_cast<int64_t>(size);
  return {memory, std::free};
}

int64_t TensorMemoryFromSystem() { return allocated_from_system; }

}  // namespace weft::internal
