// CPU time that control groups grant to this process, as those of containers do.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// The limit of a control group: its processes may use the whole time of so many CPUs together, such as 1.5.
struct CpuQuota {
  double cpus = 0;
  uint64_t group = 0;  // Identifies the group among those of the host.
};

// The limits of the control group of this process and of those that contain it. Empty: there are none.
std::vector<CpuQuota> CpuQuotas();

namespace internal {

// The same for any process. `membership` is the path of /proc/PID/cgroup, `root` the mount point of control
// groups.
std::vector<CpuQuota> ControlGroupQuotas(const std::string& membership, const std::string& root);

}  // namespace internal
}  // namespace weft
