// Disposition of signals in this process.
//
// Thread safety: free function.
#pragma once

#include <csignal>

namespace weft {

// True if the process ignores `signal`, as it does SIGHUP under nohup.
inline bool IsIgnored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace weft
