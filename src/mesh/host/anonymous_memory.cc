#include "src/mesh/host/anonymous_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <utility>

#include "weft/core/status.h"

namespace weft::internal {

absl::StatusOr<AnonymousMemory> AnonymousMemory::Reserve(size_t bytes, Sharing sharing) {
  // Do not reserve swap space: pages are committed later, with a check.
  void* base = mmap(
      nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE,
      (sharing == Sharing::kMappedAgain ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the kernel refused to map ", bytes, " bytes of node memory: ", std::strerror(errno)));
  }
  return AnonymousMemory(static_cast<std::byte*>(base), std::max<size_t>(bytes, 1));
}

AnonymousMemory::AnonymousMemory(AnonymousMemory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

AnonymousMemory& AnonymousMemory::operator=(AnonymousMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

AnonymousMemory::~AnonymousMemory() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

}  // namespace weft::internal
