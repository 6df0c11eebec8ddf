// Control groups of a process, by the files in which the kernel shows them.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>

#include <absl/functional/function_ref.h>

namespace weft::internal {

enum class ControlGroupVersion : uint8_t { k1, k2 };

// Calls `visit` for each group whose limits of `controller`, such as "memory", hold for a process: its own
// and those that contain it. `folder` has the group's files; it may not exist. A group may be visited twice.
// `membership` is the path of /proc/PID/cgroup, `root` the mount point of control groups.
void VisitControlGroups(
    const std::string& membership, const std::string& root, const std::string& controller,
    absl::FunctionRef<void(ControlGroupVersion version, const std::string& folder)> visit);

}  // namespace weft::internal
