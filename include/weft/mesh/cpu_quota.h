// CPU time that control groups grant to this process, as those of containers do.
//
// Thread safety: free functions.
#pragma once

#include <optional>
#include <string>

namespace weft {

// CPUs whose whole time the process and the others of its control group may use together, such as 1.5.
// Nothing without a limit.
std::optional<double> CpuQuota();

namespace internal {

// The least quota, in CPUs, of a process's control group and of those that contain it. Nothing without a
// limit. `membership` is the path of /proc/PID/cgroup, `root` the mount point of control groups.
std::optional<double> ControlGroupCpus(const std::string& membership, const std::string& root);

}  // namespace internal
}  // namespace weft
