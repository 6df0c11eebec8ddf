#include "weft/mesh/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "weft/core/status.h"

namespace weft {
namespace {

// The number after `key` in a file whose lines are "key number …"; nullopt without such a line.
std::optional<uint64_t> FindNumber(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  uint64_t number = 0;
  while (file >> word) {
    if (word == key && file >> number) return number;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// The number at the start of a file; nullopt without a file or a number (a cgroup without a limit has "max").
std::optional<uint64_t> ReadNumber(const char* path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// Files of the process's own control group, for one cgroup version, as they appear inside a container.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* statistics;
  const char* reclaimable_key;  // File cache that the kernel reclaims under memory pressure.
};
constexpr GroupFiles kGroupFiles[] = {
    {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat",
     "inactive_file"},
    {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
     "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"},
};

// Bytes that the group's limit leaves; the maximum of uint64_t if there is no limit.
uint64_t GroupHeadroom(const GroupFiles& files) {
  const std::optional<uint64_t> limit = ReadNumber(files.limit);
  const std::optional<uint64_t> usage = ReadNumber(files.usage);
  if (!limit || !usage) return std::numeric_limits<uint64_t>::max();
  const uint64_t reclaimable = FindNumber(files.statistics, files.reclaimable_key).value_or(0);
  const uint64_t held = *usage - std::min(*usage, reclaimable);
  return *limit - std::min(*limit, held);
}

}  // namespace

absl::StatusOr<size_t> AvailableHostMemory() {
  constexpr uint64_t kKibibyte = 1024;
  const std::optional<uint64_t> available = FindNumber("/proc/meminfo", "MemAvailable:");
  if (!available) return absl::InternalError("/proc/meminfo has no MemAvailable: is /proc mounted?");
  uint64_t bytes = *available * kKibibyte;
  for (const GroupFiles& files : kGroupFiles) bytes = std::min(bytes, GroupHeadroom(files));
  return bytes;
}

absl::StatusOr<size_t> FreeAddressSpace() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<size_t>::max();
  }
  std::ifstream file("/proc/self/statm");
  uint64_t used_pages = 0;
  if (!(file >> used_pages)) return absl::InternalError("cannot read /proc/self/statm: is /proc mounted?");
  const uint64_t used = used_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used);
}

absl::StatusOr<size_t> FreeFileSystemBytes(const char* path) {
  struct statvfs info = {};
  if (statvfs(path, &info) != 0) {
    return absl::InternalError(
        absl::StrCat("cannot read the free space of ", path, ": ", std::strerror(errno)));
  }
  return static_cast<size_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace weft
