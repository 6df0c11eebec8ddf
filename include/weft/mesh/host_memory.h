// Free memory of the host and of file systems, as far as this process may use it.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

namespace weft {

// The minimum of the kernel's MemAvailable and of what the limits of the process's control groups leave, in
// bytes.
// Errors: kInternal (/proc/meminfo has no MemAvailable).
absl::StatusOr<size_t> AvailableHostMemory();

// Bytes of virtual memory that the process may still map (ulimit -v). The maximum of size_t without a limit.
absl::StatusOr<size_t> FreeAddressSpace();

// Free bytes of the file system at `path`, such as the tmpfs /dev/shm.
// Errors: kInternal (statvfs failed).
absl::StatusOr<size_t> FreeFileSystemBytes(const char* path);

namespace internal {

// Bytes that the limits of a process's control group, and of the groups that contain it, leave; the maximum
// of uint64_t without a limit. `membership`: /proc/PID/cgroup; `root`: where control groups are mounted.
uint64_t ControlGroupHeadroom(const std::string& membership, const std::string& root);

}  // namespace internal
}  // namespace weft
