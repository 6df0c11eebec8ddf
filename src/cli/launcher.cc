#include "src/cli/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "weft/mesh/launch_environment.h"

namespace weft {
namespace {

// Reads the target of the link, but does not open it: opening could disturb a pipe.
bool IsParentsOutputTerminal() {
  const std::string link = "/proc/" + std::to_string(getppid()) + "/fd/1";
  char target[64];
  const ssize_t length = readlink(link.c_str(), target, sizeof(target));
  const std::string_view name(target, static_cast<size_t>(std::max<ssize_t>(length, 0)));
  return name.substr(0, 9) == "/dev/pts/" || name.substr(0, 8) == "/dev/tty";
}

}  // namespace

bool IsNonzeroRank() { return ReadLaunchEnvironment().rank.value_or(0) != 0; }

bool IsOutputTerminal() {
  const char* kind = std::getenv("TERM");
  if (isatty(STDOUT_FILENO) != 1 || (kind != nullptr && std::string_view(kind) == "dumb")) return false;
  return ReadLaunchEnvironment().launcher != Launcher::kOpenMpi || IsParentsOutputTerminal();
}

}  // namespace weft
