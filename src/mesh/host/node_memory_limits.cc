#include "src/mesh/host/node_memory_limits.h"

#include <algorithm>
#include <limits>

#include "weft/core/status.h"
#include "weft/mesh/host_memory.h"

namespace weft::internal {

std::vector<NodeMemoryLimits::Resource> NodeMemoryLimits::Resources() const {
  std::vector<Resource> resources = {
      {AvailableHostMemory(), "the memory of the host, or of its control group, limits it"},
      // A rank maps the segments of all ranks of its node.
      {FreeAddressSpace(), "the limit on virtual memory limits it: raise `ulimit -v`"}};
  if (file_system_ != nullptr) {
    resources.push_back(
        {FreeFileSystemBytes(file_system_),
         "the file system /dev/shm limits it: make it larger, by `mount -o remount,size=SIZE /dev/shm` or "
         "`docker run --shm-size SIZE`"});
  }
  return resources;
}

absl::StatusOr<size_t> NodeMemoryLimits::FreeBytes() const {
  size_t least = std::numeric_limits<size_t>::max();
  for (const Resource& resource : Resources()) {
    WEFT_RETURN_IF_ERROR(resource.free_bytes.status());
    least = std::min(least, *resource.free_bytes);
  }
  return least;
}

std::string NodeMemoryLimits::ScarcestResource() const {
  const std::vector<Resource> resources = Resources();
  const auto free_bytes = [](const Resource& resource) {
    return resource.free_bytes.value_or(std::numeric_limits<size_t>::max());
  };
  return std::min_element(resources.begin(), resources.end(),
                          [&](const Resource& a, const Resource& b) { return free_bytes(a) < free_bytes(b); })
      ->limit;
}

absl::Status NodeMemoryLimits::Check(size_t segment_bytes, size_t footprint_bytes, size_t ranks) const {
  WEFT_ASSIGN_OR_RETURN(const size_t free_bytes, FreeBytes());
  // The footprint of a size near the largest may have wrapped around.
  if (std::max(segment_bytes, footprint_bytes) <= free_bytes / ranks) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot reserve ", segment_bytes, " bytes of node memory for each of ", ranks,
                   " ranks: only ", free_bytes, " are free on the node, as ", ScarcestResource()));
}

}  // namespace weft::internal
