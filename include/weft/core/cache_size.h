// How large the caches of the machine are.
#pragma once

#include <cstdint>
#include <string>

namespace weft {

// Bytes that a core may find in its own second-level cache, and in the last one, which it may share: as Linux
// describes the first CPU, else as the C library does (which on some CPUs counts the last-level caches of the
// whole package), else 1 MiB and 64 MiB.
int64_t CoreCacheBytes();
int64_t LastLevelCacheBytes();

// Of the largest cache for data of at most `level` that the folder describes, which is laid out like
// /sys/devices/system/cpu/cpu0/cache; 0 if it describes none.
int64_t CacheBytesIn(const std::string& folder, int level);

}  // namespace weft
