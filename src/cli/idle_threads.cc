#include "src/cli/idle_threads.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace weft {
namespace {

// Spins for about a microsecond, longer than the gap between two consecutive loops.
constexpr const char* kSpinCount = "1000";

}  // namespace

void LetIdleThreadsSleep(char** arguments) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) {
    return;
  }
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && setenv("GOMP_SPINCOUNT", kSpinCount, 1) == 0) {
    execv(program.c_str(), arguments);
  }
}

}  // namespace weft
