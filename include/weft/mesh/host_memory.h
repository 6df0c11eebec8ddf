// Free memory of the host and of file systems, as far as this process may use it.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>

#include <absl/status/statusor.h>

namespace weft {

// The minimum of the kernel's MemAvailable and the control group's remaining limit, in bytes.
// Errors: kInternal (/proc/meminfo has no MemAvailable).
absl::StatusOr<size_t> AvailableHostMemory();

// Bytes of virtual memory that the process may still map (ulimit -v). The maximum of size_t without a limit.
absl::StatusOr<size_t> FreeAddressSpace();

// Free bytes of the file system at `path`, such as the tmpfs /dev/shm.
// Errors: kInternal (statvfs failed).
absl::StatusOr<size_t> FreeFileSystemBytes(const char* path);

}  // namespace weft
