// Resources that limit the node memory of processes: free bytes, and how to get more.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft::internal {

class NodeMemoryLimits {
 public:
  // `file_system` holds the pages of node memory, such as /dev/shm. Null: no file system does.
  explicit NodeMemoryLimits(const char* file_system) : file_system_(file_system) {}

  // Free bytes of the scarcest resource, and its name with a remedy. See Bootstrap::FreeNodeMemory.
  absl::StatusOr<size_t> FreeBytes() const;
  std::string ScarcestResource() const;
  // Checks that each of `ranks` ranks can reserve `segment_bytes`, which take `footprint_bytes`.
  // Errors: kResourceExhausted (gives the requested and the free bytes, the resource and its remedy).
  absl::Status Check(size_t segment_bytes, size_t footprint_bytes, size_t ranks) const;

 private:
  struct Resource {
    absl::StatusOr<size_t> free_bytes;
    const char* limit;  // Names the resource, and says how to get more of it.
  };
  std::vector<Resource> Resources() const;

  const char* file_system_;
};

}  // namespace weft::internal
