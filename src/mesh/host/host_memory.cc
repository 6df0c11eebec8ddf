#include "weft/mesh/host_memory.h"

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

#include <absl/strings/str_cat.h>

#include "src/mesh/host/control_groups.h"
#include "weft/core/page_bytes.h"
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

// Files of a control group, for one cgroup version.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* statistics;
  const char* reclaimable_key;  // File cache that the kernel reclaims under memory pressure.
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat",
                                  "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "memory.stat", "inactive_file"};

// Bytes that the limit of the group with this folder leaves; the maximum of uint64_t if there is no limit.
uint64_t Headroom(const std::string& folder, const GroupFiles& files) {
  const std::optional<uint64_t> limit = ReadNumber(absl::StrCat(folder, "/", files.limit).c_str());
  const std::optional<uint64_t> usage = ReadNumber(absl::StrCat(folder, "/", files.usage).c_str());
  if (!limit || !usage) return std::numeric_limits<uint64_t>::max();
  const uint64_t reclaimable =
      FindNumber(absl::StrCat(folder, "/", files.statistics).c_str(), files.reclaimable_key).value_or(0);
  const uint64_t held = *usage - std::min(*usage, reclaimable);
  return *limit - std::min(*limit, held);
}

}  // namespace

uint64_t internal::ControlGroupHeadroom(const std::string& membership, const std::string& root) {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  VisitControlGroups(membership, root, "memory", [&](ControlGroupVersion version, const std::string& folder) {
    least = std::min(least, Headroom(folder, version == ControlGroupVersion::k2 ? kVersion2 : kVersion1));
  });
  return least;
}

absl::StatusOr<size_t> AvailableHostMemory() {
  constexpr uint64_t kKibibyte = 1024;
  const std::optional<uint64_t> available = FindNumber("/proc/meminfo", "MemAvailable:");
  if (!available) {
    return absl::InternalError(
        "cannot read MemAvailable of /proc/meminfo: is /proc mounted, and does `ulimit -n` leave a file to "
        "open?");
  }
  return std::min(*available * kKibibyte,
                  internal::ControlGroupHeadroom("/proc/self/cgroup", "/sys/fs/cgroup"));
}

absl::StatusOr<size_t> FreeAddressSpace() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<size_t>::max();
  }
  std::ifstream file("/proc/self/statm");
  uint64_t used_pages = 0;
  if (!(file >> used_pages)) return absl::InternalError("cannot read /proc/self/statm: is /proc mounted?");
  const uint64_t used = used_pages * PageBytes();
  return limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used);
}

size_t LargestFileBytes() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<size_t>::max();
  }
  return limit.rlim_cur;
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");  // Sizes in pages: the whole one, then the resident one.
  int64_t whole_pages = 0;
  int64_t resident_pages = 0;
  if (!(file >> whole_pages >> resident_pages)) return 0;
  return resident_pages * static_cast<int64_t>(PageBytes());
}

absl::StatusOr<size_t> FreeFileSystemBytes(const char* path) {
  struct statvfs info = {};
  if (statvfs(path, &info) != 0) {
    return absl::InternalError(
        absl::StrCat("cannot read the free space of ", path, ": ", std::strerror(errno)));
  }
  return static_cast<size_t>(info.f_bavail) * info.f_frsize;
}

std::string FreeMemory::ScarcestResource() const {
  if (host == least()) return "the memory of the host, or of its control group, limits it";
  if (address_space == least()) return "the limit on virtual memory limits it: raise `ulimit -v`";
  if (file_sizes == least()) return "the limit on the size of files limits it: raise `ulimit -f`";
  return "the file system /dev/shm limits it: make it larger, by `mount -o remount,size=SIZE /dev/shm` or "
         "`docker run --shm-size SIZE`";
}

}  // namespace weft
