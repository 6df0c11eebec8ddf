// Sizes of the machine's data caches.
//
// Thread safety: free functions; any thread may call them.
#pragma once

#include <cstdint>
#include <string>

namespace weft {

// Bytes of a core's second-level cache, and of the last-level cache, which several cores may share. The sizes
// are those of the first CPU in Linux's sysfs. Without them, sysconf gives the sizes; on some CPUs it adds up
// the last-level caches of the package. Without these too, the results are 1 MiB and 64 MiB.
int64_t CoreCacheBytes();
int64_t LastLevelCacheBytes();

// Bytes of the largest data or unified cache up to `level` that `folder` describes; 0 if it describes none.
// The folder has the layout of /sys/devices/system/cpu/cpu0/cache.
int64_t CacheBytesIn(const std::string& folder, int level);

}  // namespace weft
