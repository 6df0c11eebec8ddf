// Memory that this process holds, and free memory of the host and of file systems that it may use.
//
// Thread safety: values and free functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include <absl/status/statusor.h>

namespace weft {

// Bytes that the process can still allocate: the minimum of the kernel's MemAvailable and of the headroom of
// the process's control groups.
// Errors: kInternal (/proc/meminfo has no MemAvailable).
absl::StatusOr<size_t> AvailableHostMemory();

// Bytes of virtual memory that the process may still map (ulimit -v). The maximum of size_t without a limit.
// Errors: kInternal (/proc/self/statm cannot be read).
absl::StatusOr<size_t> FreeAddressSpace();

// Bytes of the largest file that the process may make (ulimit -f). The maximum of size_t without a limit.
size_t LargestFileBytes();

// Free bytes of the file system at `path`, such as the tmpfs /dev/shm.
// Errors: kInternal (statvfs failed).
absl::StatusOr<size_t> FreeFileSystemBytes(const char* path);

// Resident memory of this process, in bytes; 0 if the system does not report it.
int64_t ResidentBytes();

// Free bytes of the resources that limit the node memory of a rank.
struct FreeMemory {
  static constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

  size_t host = 0;                  // Memory of the host, within the limits of control groups.
  size_t file_system = kUnlimited;  // File system that holds the pages, such as /dev/shm.
  // Files that hold the pages, at the largest sizes that this process may give them (ulimit -f). As with
  // `address_space`, a reservation takes them at once.
  size_t file_sizes = kUnlimited;
  // Virtual memory of this process (ulimit -v). A reservation takes it at once, for the segments of all ranks
  // of the node. Pages that are committed later take none.
  size_t address_space = kUnlimited;

  // Bytes of the scarcest resource: those that the ranks of the node can reserve together.
  size_t least() const { return std::min(reservable(), address_space); }
  // Bytes that limit a reservation, apart from addresses.
  size_t reservable() const { return std::min(committable(), file_sizes); }
  // Bytes that limit the pages which are committed after a reservation.
  size_t committable() const { return std::min(host, file_system); }
  // Names the scarcest resource, and says how to get more of it. Used at the end of messages.
  std::string ScarcestResource() const;
};

namespace internal {

// Headroom of a process's control group: the least limit minus usage, in bytes, of the group and of those
// that contain it. Cache that the kernel can reclaim is not usage. The maximum of uint64_t without a limit.
// `membership` is the path of /proc/PID/cgroup, `root` the mount point of control groups.
uint64_t ControlGroupHeadroom(const std::string& membership, const std::string& root);

}  // namespace internal
}  // namespace weft
