// Where the memory of tensors comes from: a file for each way, chosen in CMake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace weft::internal {

// At least `bytes`, also for 0, aligned to 64 bytes, uninitialised. Aborts when there is none.
//
// Thread safety: any thread may allocate, and release what another allocated.
std::shared_ptr<void> AllocateTensorMemory(size_t bytes);
// Bytes that have come from malloc so far.
int64_t TakenTensorMemory();

}  // namespace weft::internal
