#include "src/train/output/output_locks.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>

#include <absl/strings/str_cat.h>

namespace weft {
namespace {

constexpr std::chrono::milliseconds kPollInterval(100);

// A shared lock can be taken by those who may only read, and is refused while another file description has an
// exclusive one.
bool IsLocked(const std::string& path) {
  struct stat info {};
  // A reader of a pipe would count as one of the run's output.
  if (stat(path.c_str(), &info) != 0 || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode))) return false;
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false;  // Whoever opens it later reports the error.
  const bool is_locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  return is_locked;
}

// Empty: none is locked.
std::string LockedOutput(const TrainConfig& config) {
  for (const std::string& path :
       {config.checkpoint.folder, config.output.metrics_file, config.output.export_folder}) {
    if (!path.empty() && IsLocked(path)) return path;
  }
  return "";
}

}  // namespace

absl::Status WaitForLockedOutputs(const TrainConfig& config, absl::Duration limit,
                                  absl::FunctionRef<bool()> is_stopped, RunConsole& console) {
  if (limit <= absl::ZeroDuration()) return absl::OkStatus();
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
  std::string announced;
  for (std::string locked = LockedOutput(config); !locked.empty(); locked = LockedOutput(config)) {
    if (is_stopped()) {
      return absl::CancelledError(
          absl::StrCat("stopped by a signal while a rank of an earlier attempt still had ", locked));
    }
    if (std::chrono::steady_clock::now() >= end) break;
    if (locked != announced) {
      console.PrintLine(absl::StrCat("waiting  for a rank of an earlier attempt, which still has ", locked,
                                     ", for at most ", absl::FormatDuration(limit)));
      announced = locked;
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  return absl::OkStatus();
}

}  // namespace weft
