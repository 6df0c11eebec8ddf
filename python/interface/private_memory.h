// Interface of the process's private heap, for extension modules that do not link weft (group_collectives.h).
//
// Thread safety and forked children: as PrivateHeap. Lifetime: never ends.
#pragma once

#include <cstddef>

namespace weft::python {

// The name of the capsule, and with it the version of this interface. The capsule holds a PrivateMemory*.
inline constexpr char kPrivateMemoryCapsule[] = "weft.PrivateMemory.1";

class PrivateMemory {
 public:
  virtual ~PrivateMemory() = default;

  // Returns a 64-byte aligned block, or null if there is no room.
  virtual void* Allocate(size_t bytes) = 0;
  // REQUIRES: `block` is one of Allocate.
  virtual void Free(void* block) = 0;
  virtual bool Contains(const void* pointer) const = 0;
};

}  // namespace weft::python
