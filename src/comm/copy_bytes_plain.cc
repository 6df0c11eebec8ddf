// Copies for CPUs without a non-temporal variant here: the hint is a hint.
#include <cstring>

#include "src/comm/copy_bytes.h"

namespace weft {

void CopyBytes(std::byte* target, const std::byte* source, size_t bytes, bool /*nontemporal*/) {
  std::memcpy(target, source, bytes);
}

void FenceNontemporal() {}

}  // namespace weft
