#include "weft/mesh/cpu_quota.h"

#include <algorithm>
#include <fstream>

#include <absl/strings/str_cat.h>

#include "src/mesh/host/control_groups.h"

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

}  // namespace

std::optional<double> internal::ControlGroupCpus(const std::string& membership, const std::string& root) {
  std::optional<double> least;
  VisitControlGroups(membership, root, "cpu", [&](ControlGroupVersion version, const std::string& folder) {
    const std::optional<double> quota = QuotaOfGroup(version, folder);
    if (quota) least = std::min(least.value_or(*quota), *quota);
  });
  return least;
}

std::optional<double> CpuQuota() { return internal::ControlGroupCpus("/proc/self/cgroup", "/sys/fs/cgroup"); }

}  // namespace weft
