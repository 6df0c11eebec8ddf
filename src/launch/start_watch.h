// Detects that a host does not answer mpirun.
//
// mpirun waits without a deadline for an ssh that hangs, and starts no rank on any host until the daemons of
// all hosts have connected to it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <absl/time/time.h>

#include "src/launch/daemon_process.h"

namespace weft::internal {

class StartWatch {
 public:
  // `limit`: of the time until ranks may exist. `ranks_are_local`: all ranks run on this host.
  StartWatch(absl::Duration limit, bool ranks_are_local) : limit_(limit), ranks_are_local_(ranks_are_local) {}

  // `connected`: DaemonProcess::ConnectedDaemons.
  void Update(const DaemonChildren& children, std::optional<size_t> connected);

  // True once ranks may exist: this host has some, or all other hosts have answered. Stays true.
  bool started() const { return started_; }
  // True while no rank can exist. Also false if that cannot be seen: mpirun may reach hosts without an agent.
  bool is_waiting() const { return !started_ && (ranks_are_local_ || (!hosts_.empty() && connected_)); }
  // Only if it waits for another host: a program in place of mpirun may hide the ranks of this one.
  bool Expired(absl::Duration since_begin) const {
    return is_waiting() && !hosts_.empty() && since_begin >= limit_;
  }
  // For the user, once the limit has passed.
  std::string Cause() const;

 private:
  const absl::Duration limit_;
  const bool ranks_are_local_;
  std::vector<std::string> hosts_;  // Of agents.
  std::optional<size_t> connected_;
  bool started_ = false;
};

}  // namespace weft::internal
