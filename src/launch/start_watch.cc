#include "src/launch/start_watch.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace weft::internal {

void StartWatch::Update(const DaemonChildren& children, std::optional<size_t> connected) {
  if (started_) return;
  hosts_ = children.agent_hosts;
  connected_ = connected;
  const size_t daemons = connected_.value_or(0);
  started_ = !children.ranks.empty() || (daemons > 0 && daemons >= hosts_.size());
}

std::string StartWatch::Cause() const {
  const std::string within = absl::StrCat(" within ", absl::FormatDuration(limit_));
  const std::string silent =
      hosts_.size() == 1 ? hosts_.front()
                         : absl::StrCat(hosts_.size() - std::min(connected_.value_or(0), hosts_.size()),
                                        " of the hosts ", absl::StrJoin(hosts_, ", "));
  return absl::StrCat(silent, " did not answer mpirun", within,
                      ": check that ssh runs a command there without a password, and that programs there can "
                      "connect to this host, or set a longer WEFT_STARTUP_TIMEOUT_S");
}

}  // namespace weft::internal
