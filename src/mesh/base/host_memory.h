// How much memory this process could still get from its host.
#pragma once

#include <cstddef>

#include <absl/status/statusor.h>

namespace weft::internal {

// What the kernel deems available, or what the control group leaves if that is less. Errors: kInternal.
absl::StatusOr<size_t> AvailableHostMemory();

// What the file system at `path` (a tmpfs such as /dev/shm) can still hold. Errors: kInternal.
absl::StatusOr<size_t> FreeFileSystemBytes(const char* path);

}  // namespace weft::internal
