#include "weft/core/thread.h"

#include <system_error>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {

// A thread needs a place in the limits of processes, and addresses for its stack.
absl::StatusOr<std::thread> StartThread(std::string_view purpose, absl::AnyInvocable<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a thread for ", ToAbsl(purpose), ": ",
                                                     error.code().message(),
                                                     ": raise the limit of processes (ulimit -u, pids.max of "
                                                     "the control group) or of memory (ulimit -v)"));
  }
}

}  // namespace weft
