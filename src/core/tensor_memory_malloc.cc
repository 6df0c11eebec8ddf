// Straight from malloc: under sanitizers, which then see every tensor's life.
#include <cstdlib>

#include "src/core/tensor_memory.h"
#include "weft/core/status.h"

namespace weft::internal {

std::shared_ptr<void> AllocateTensorMemory(size_t bytes) {
  constexpr size_t kAlignment = 64;
  void* memory = std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment);
  WEFT_CHECK(memory != nullptr, absl::StrCat("out of memory for a tensor of ", bytes, " bytes"));
  return {memory, std::free};
}

}  // namespace weft::internal
