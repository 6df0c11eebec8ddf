#include "src/mesh/host/node_memory_limits.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft::internal {

absl::StatusOr<FreeMemory> FreeMemoryOfHost(const NodeMemoryPlace& place) {
  FreeMemory free_memory;
  WEFT_ASSIGN_OR_RETURN(free_memory.host, AvailableHostMemory());
  WEFT_ASSIGN_OR_RETURN(free_memory.address_space, FreeAddressSpace());
  if (place.file_system != nullptr) {
    WEFT_ASSIGN_OR_RETURN(free_memory.file_system, FreeFileSystemBytes(place.file_system));
  }
  if (place.files > 0) {
    free_memory.file_sizes = std::min(LargestFileBytes(), FreeMemory::kUnlimited / place.files) * place.files;
  }
  return free_memory;
}

absl::StatusOr<FreeMemory> FreeMemoryOfEmulatedNode(int nodes) {
  WEFT_ASSIGN_OR_RETURN(FreeMemory free_memory, FreeMemoryOfHost({}));
  free_memory.host /= static_cast<size_t>(nodes);
  free_memory.address_space /= static_cast<size_t>(nodes);
  return free_memory;
}

absl::Status CheckReservation(const absl::StatusOr<FreeMemory>& free_memory, size_t segment_bytes,
                              size_t footprint_bytes, size_t ranks) {
  WEFT_RETURN_IF_ERROR(free_memory.status());
  // The footprint of a size near the largest may have wrapped around.
  if (std::max(segment_bytes, footprint_bytes) <= free_memory->least() / ranks) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot reserve ", segment_bytes, " bytes of node memory for each of ", ranks, " ranks: only ",
      free_memory->least(), " are free on the node, as ", free_memory->ScarcestResource()));
}

}  // namespace weft::internal
