// Decision after an attempt of a launch: its exit code, its cause in words, and whether another attempt
// follows.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace weft::internal {

// How mpirun ended.
enum class EndKind {
  kExited,    // By itself, with an exit code.
  kKilled,    // By a signal that killed mpirun itself.
  kHostLost,  // It waited for a host that did not respond, and was ended.
  kHung,  // It did not end after its ranks, all of this host, and was ended. Their exit codes are unknown.
  kNotStarted,  // It started no rank, as a host did not answer, and was ended.
};

// The end of one attempt.
struct AttemptEnd {
  EndKind kind = EndKind::kExited;
  int value = 0;                 // The exit code, or the number of the signal.
  bool started_no_rank = false;  // mpirun is known to have started no rank.
  bool stop_requested = false;   // A signal has asked the launch to stop.
  bool lost_output = false;      // Nobody reads what the launch prints, and the user has not stopped it.
  std::string cause = {};        // Of kNotStarted, in words.
};

// The place of an attempt in its launch.
struct AttemptNumber {
  int64_t attempt = 1;  // From 1.
  int64_t max_restarts = 0;
  int64_t restart_delay_s = 0;
};

struct Verdict {
  bool restart = false;
  int exit_code = 0;    // For the user, if no other attempt follows.
  std::string message;  // For the user; may be empty.
};

// True for the exit codes that mean that a signal killed a process. mpirun has greater ones of its own, such
// as 243.
bool IsExitOfSignal(int code);

// The exit code of a launch whose only or last attempt ended like this.
int ExitCodeOf(const AttemptEnd& end);

// Note [Restarts]
// An attempt is repeated if a rank died or did not respond, as that may not happen again: another machine may
// have failed, or memory may have been short. It is not repeated if the program has finished, if it was
// stopped, or if the command line, a file or the numbers are at fault: 0, 2, 3, 4 and 130. The first attempt
// is not repeated either if mpirun is known to have started no rank, for example because there are too few
// slots, or because a host did not answer.
Verdict Judge(const AttemptEnd& end, const AttemptNumber& number);

}  // namespace weft::internal
