// Allocator for tensor memory. CMake chooses one of its implementations: cached, or plain malloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace weft::internal {

// Allocates at least `bytes` of uninitialized memory, aligned to 64 bytes; not null even for 0 bytes. Throws
// std::bad_alloc if there is no memory.
//
// Thread safety: any thread may allocate, and may free memory that another thread allocated.
std::shared_ptr<void> AllocateTensorMemory(size_t bytes);
// Total bytes allocated from malloc so far; never decreases.
int64_t TensorMemoryFromSystem();

}  // namespace weft::internal
