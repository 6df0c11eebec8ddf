#include "src/launch/verdict.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

#include <absl/strings/str_cat.h>

#include "weft/core/exit_codes.h"

namespace weft::internal {
namespace {

constexpr int kLastSignal = 64;

// An exit code of the program. docs/training.md lists them.
struct KnownCode {
  int code;
  bool restart;
  const char* cause;
};

constexpr std::array<KnownCode, 7> kKnownCodes = {{
    {kExitDone, false, "the program has finished"},
    {kExitFailed, true,
     "out of memory, a full disk, a failed start of MPI, replicas or collectives that differ between ranks, "
     "a lost host or a defect"},
    {kExitBadUsage, false, "the command line or the configuration is at fault"},
    {kExitBadFile, false, "an input or output file is at fault"},
    {kExitNotFinite, false, "a number became infinite or NaN"},
    {kExitRankMissing, true, "a rank failed or did not respond in time"},
    {kExitInterrupted, false, "a signal stopped the program"},
}};

const KnownCode* FindCode(int code) {
  const auto* found = std::find_if(kKnownCodes.begin(), kKnownCodes.end(),
                                   [&](const KnownCode& known) { return known.code == code; });
  return found == kKnownCodes.end() ? nullptr : found;
}

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

std::string CauseOf(const AttemptEnd& end) {
  if (end.kind == EndKind::kNotStarted) return end.cause;
  if (end.kind == EndKind::kHostLost)
    return "the ranks of this host have ended, but mpirun waited for another host";
  if (end.kind == EndKind::kHung) return "all ranks have ended, but mpirun has not";
  if (end.kind == EndKind::kKilled) return absl::StrCat("mpirun was killed by ", SignalName(end.value));
  if (end.started_no_rank) return "mpirun started no rank; see its messages";
  if (const KnownCode* known = FindCode(end.value)) return known->cause;
  if (IsExitOfSignal(end.value))
    return absl::StrCat("a rank was killed by ", SignalName(end.value - kExitSignalBase));
  return "mpirun failed, or a rank ended with a code that the program does not use";
}

bool IsRetryable(const AttemptEnd& end, const AttemptNumber& number) {
  const bool no_rank = end.started_no_rank || end.kind == EndKind::kNotStarted;
  if (no_rank && number.attempt == 1) return false;
  if (end.kind != EndKind::kExited) return true;
  const KnownCode* known = FindCode(end.value);
  return known == nullptr || known->restart;
}

std::string Restarts(int64_t count) { return absl::StrCat(count, count == 1 ? " restart" : " restarts"); }

}  // namespace

bool IsExitOfSignal(int code) { return code > kExitSignalBase && code <= kExitSignalBase + kLastSignal; }

int ExitCodeOf(const AttemptEnd& end) {
  switch (end.kind) {
    case EndKind::kExited:
      return end.value;
    case EndKind::kKilled:
      return kExitSignalBase + end.value;
    case EndKind::kHostLost:
      return kExitRankMissing;
    case EndKind::kNotStarted:
    case EndKind::kHung:  // Ranks end if they are asked to stop.
      return end.stop_requested ? kExitInterrupted : kExitRankMissing;
  }
  return kExitFailed;
}

Verdict Judge(const AttemptEnd& end, const AttemptNumber& number) {
  Verdict verdict;
  verdict.exit_code = ExitCodeOf(end);
  const int code = verdict.exit_code;
  const int64_t restarts = number.attempt - 1;
  const std::string attempt = absl::StrCat("attempt ", number.attempt, " of ", number.max_restarts + 1);
  const std::string ended = absl::StrCat(attempt, " ended with exit code ", code, " (", CauseOf(end), ")");
  if (end.lost_output && code != kExitDone) {
    const bool was_stopped = code == kExitInterrupted;
    if (was_stopped) verdict.exit_code = kExitFailed;
    verdict.message = absl::StrCat("nothing reads the output any more, ",
                                   was_stopped ? "so the run was stopped" : absl::StrCat("and ", ended),
                                   ": not restarting; send the output to a file to let a run go on");
  } else if (!IsRetryable(end, number)) {
    if (restarts > 0 && code == kExitDone)
      verdict.message = absl::StrCat("finished in ", attempt);
    else if (restarts > 0 || end.started_no_rank || end.kind == EndKind::kNotStarted)
      verdict.message = absl::StrCat(ended, ": not restarting");
    // Otherwise the program has said why it ended.
  } else if (end.stop_requested) {
    verdict.message = absl::StrCat(ended, " while it stopped: not restarting");
  } else if (restarts >= number.max_restarts) {
    verdict.message = number.max_restarts == 0
                          ? absl::StrCat(ended, ": not restarting, as --max-restarts is 0")
                          : absl::StrCat(ended, ": giving up after ", Restarts(restarts));
  } else {
    verdict.restart = true;
    verdict.message =
        absl::StrCat(ended, ": starting attempt ", number.attempt + 1, " in ", number.restart_delay_s, " s; ",
                     Restarts(number.max_restarts - restarts - 1), " left after it");
  }
  return verdict;
}

}  // namespace weft::internal
