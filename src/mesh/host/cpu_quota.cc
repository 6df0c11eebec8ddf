#include "weft/mesh/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sys/stat.h>

#include <absl/strings/str_cat.h>

#include "src/mesh/host/control_groups.h"
#include "weft/core/hash.h"

namespace weft {
namespace {

// Microseconds of CPU time in each period of so many. Without a limit, the file has "max" (version 2) or -1
// (version 1) as the first number.
std::optional<double> Quota(std::istream& quota_us, std::istream& period_us) {
  double quota = 0;
  double period = 0;
  if (!(quota_us >> quota && period_us >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

std::optional<double> QuotaOfGroup(internal::ControlGroupVersion version, const std::string& folder) {
  if (version == internal::ControlGroupVersion::k2) {
    std::ifstream both(absl::StrCat(folder, "/cpu.max"));
    return Quota(both, both);
  }
  std::ifstream quota(absl::StrCat(folder, "/cpu.cfs_quota_us"));
  std::ifstream period(absl::StrCat(folder, "/cpu.cfs_period_us"));
  return Quota(quota, period);
}

// The folder's inode is that of the group, whichever part of the groups a container sees.
uint64_t IdentityOf(const std::string& folder) {
  struct stat info = {};
  if (stat(folder.c_str(), &info) != 0) return 0;
  const uint64_t identity[] = {info.st_dev, info.st_ino};
  return Hash64(identity, sizeof(identity));
}

}  // namespace

std::vector<CpuQuota> internal::ControlGroupQuotas(const std::string& membership, const std::string& root) {
  std::vector<CpuQuota> quotas;
  VisitControlGroups(membership, root, "cpu", [&](ControlGroupVersion version, const std::string& folder) {
    const std::optional<double> cpus = QuotaOfGroup(version, folder);
    if (!cpus) return;
    const uint64_t group = IdentityOf(folder);
    const bool is_known = std::any_of(quotas.begin(), quotas.end(),
                                      [&](const CpuQuota& known) { return known.group == group; });
    if (!is_known) quotas.push_back({*cpus, group});
  });
  return quotas;
}

std::vector<CpuQuota> CpuQuotas() {
  return internal::ControlGroupQuotas("/proc/self/cgroup", "/sys/fs/cgroup");
}

}  // namespace weft
