// Watchdog thread: writes the flight recorder when the engine fails, and ends the process if it survives a
// missed deadline, or if an operation runs for too long.
//
// The thread makes no MPI call and does not take the core's lock. The exit code is 86, which mpirun then
// returns as well.
//
// Note [Dumps of all ranks]
// Problem: mpirun ends the other ranks as soon as one has ended, but a dump of every rank is needed to see
// who is late.
// Rule: the rank that meets a failure publishes it before it ends. The watchdog of every rank, also of one
// that hangs in a call, sees the failure within kCheckIntervalNs plus the progress thread's longest sleep,
// and writes its dump. A rank that ends leaves the others Options::dump_time for it.
// Without the rule: only the first rank leaves a dump.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <absl/base/thread_annotations.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/comm/engine/recorder.h"
#include "weft/core/mutex.h"
#include "weft/mesh/unpaused_clock.h"

namespace weft {

class Watchdog {
 public:
  struct Options {
    int64_t limit_ns;         // Longest run time of an operation.
    std::string dump_folder;  // Empty: no dump.
    int rank;
    int ranks;
    // Longest wait for a dump to be written. A rank that ends leaves the others this time for theirs.
    absl::Duration dump_time = absl::Seconds(1);
  };
  // `now` reads the clock of the recorder's times. `end` ends the process with an exit code; tests replace
  // it.
  // Lifetime: the recorder must outlive the watchdog.
  // Errors: kResourceExhausted (the system gives the process no thread; names the limits).
  static absl::StatusOr<std::unique_ptr<Watchdog>> Start(const Recorder& recorder, Options options,
                                                         std::function<int64_t()> now,
                                                         std::function<void(int)> end);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Work of the program that may take longer than the limits, with a deadline of its own.
  enum class Task : uint8_t {
    kWait,   // Wait for an operation, with a later deadline than the engine's timeout.
    kReset,  // ResetAfterError: the process may survive the failure until then.
  };
  // A task in progress. It ends with this object, and the limits then start again.
  class [[nodiscard]] Extension {
   public:
    Extension(Watchdog& watchdog, Task task, int64_t until_ns)
        : watchdog_(&watchdog), task_(task), until_ns_(until_ns) {}
    Extension(Extension&& other) noexcept
        : watchdog_(std::exchange(other.watchdog_, nullptr)),
          task_(other.task_),
          until_ns_(other.until_ns_) {}
    Extension& operator=(Extension&&) = delete;
    ~Extension() {
      if (watchdog_ != nullptr) watchdog_->EndExtension(task_, until_ns_);
    }

   private:
    Watchdog* watchdog_;
    Task task_;
    int64_t until_ns_;
  };
  // The task that begins now does not end the process before `until_ns`, pauses left out.
  Extension Extend(Task task, int64_t until_ns) ABSL_LOCKS_EXCLUDED(mutex_);

  // Writes the dump if the engine has failed, unless it has been written. A failure that the program causes
  // itself, such as an unreadable file, needs none.
  void DumpFailure() ABSL_LOCKS_EXCLUDED(mutex_);
  // Prints `cause`, writes the dump, leaves the other ranks time for theirs, and ends the process. If another
  // thread does so, waits for it.
  void EndProcess(const absl::Status& cause) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Extended {
    std::multiset<int64_t> until_ns;  // Deadlines of the tasks in progress, by clock_.
    int64_t last_end_ns = 0;
  };
  Watchdog(const Recorder& recorder, Options options, std::function<int64_t()> now,
           std::function<void(int)> end);
  void EndExtension(Task task, int64_t until_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  // True if a task in progress has not reached its deadline.
  bool IsExtended(Task task, int64_t now) ABSL_LOCKS_EXCLUDED(mutex_);
  // True if the operation has run for longer than the limit, pauses left out, since it started or a task
  // ended.
  bool IsStuck(const Recorder::StuckOperation& operation, int64_t now) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // True if the engine failed by a missed deadline more than kChecksAfterFailure checks ago, and is not being
  // reset. Called once in each check.
  bool MustEnd(int64_t now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes the dump, once for each failure. Waits for dump_time at most. Returns where it is, for messages.
  std::string Dump() ABSL_LOCKS_EXCLUDED(dump_mutex_);

  const Recorder& recorder_;
  const Options options_;
  const std::function<int64_t()> now_;
  const std::function<void(int)> end_;
  const std::string dump_path_;
  Mutex mutex_;
  std::condition_variable_any stopped_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  UnpausedClock clock_ ABSL_GUARDED_BY(mutex_);               // The recorder's clock without pauses.
  std::array<Extended, 2> extended_ ABSL_GUARDED_BY(mutex_);  // By task.
  // The operation that IsStuck looks at runs since this time of the recorder's clock, and since that of
  // clock_.
  int64_t watched_since_ns_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t watched_from_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  Mutex dump_mutex_;
  int64_t dumped_number_ ABSL_GUARDED_BY(dump_mutex_) = 0;  // Recorder::failure_number at the last Dump.
  std::string dumped_ ABSL_GUARDED_BY(dump_mutex_);         // Result of the last Dump; empty before.
  std::future<absl::Status> writing_ ABSL_GUARDED_BY(dump_mutex_);  // Valid if the last dump may still hang.
  int failed_checks_ = 0;  // See MustEnd. Used by the watchdog's thread only.
  std::atomic<bool> ending_{false};
  std::atomic<bool> has_ended_{false};
  std::thread thread_;  // Last: it uses the other members. Set by Start.
};

}  // namespace weft
