// Processes of this host as /proc shows them: children, command, environment, connections, and the signals
// that a process takes.
//
// A process that has ended has no children, variables or connections, and takes no signal.
// Thread safety: functions without state.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace weft::internal {

// The children of all threads of a process.
std::vector<pid_t> ChildrenOf(pid_t pid);

// Children, their children, and so on. Without processes that have ended and are not yet reaped, and without
// `excluded` processes and their descendants.
std::vector<pid_t> DescendantsOf(pid_t pid, const std::set<pid_t>& excluded = {});

// True if the process has ended and is not yet reaped.
bool IsZombie(pid_t pid);

// True if the variable was set when the process executed its program.
bool HasVariable(pid_t pid, std::string_view name);

// The program and its arguments.
std::vector<std::string> CommandWords(pid_t pid);

// The number of TCP connections that other processes have opened to this one and that are still established.
// Nothing if the process listens on no port, or if the system does not show its sockets.
std::optional<size_t> AcceptedConnections(pid_t pid);

// True if the signal does not end the process at once: it is handled, or blocked until a thread takes it.
bool TakesSignal(pid_t pid, int signal);

}  // namespace weft::internal
