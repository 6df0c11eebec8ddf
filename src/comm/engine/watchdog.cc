#include "src/comm/engine/watchdog.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>
#include <string_view>
#include <system_error>
#include <utility>

#include "src/comm/engine/wait_times.h"
#include "weft/core/exit_codes.h"
#include "weft/core/status.h"
#include "weft/core/thread.h"
#include "weft/core/write_all.h"

namespace weft {
namespace {

constexpr int64_t kCheckIntervalNs = 100 * kMillisecond;
constexpr mode_t kFileMode = 0666;
// Number of checks after a missed deadline within which a program must end, or reset its engine. A thread
// that hangs in a call does neither.
constexpr int kChecksAfterFailure = 10;

// True for failures of communication: missing ranks, ranks that disagree, a broken transport.
bool NeedsDump(const absl::Status& failure) {
  return absl::IsDeadlineExceeded(failure) || absl::IsFailedPrecondition(failure) ||
         absl::IsInternal(failure);
}

absl::Status CannotWrite(const std::string& path, int error) {
  return absl::InternalError(absl::StrCat("cannot write '", path, "': ", std::strerror(error)));
}

// Gives the unnamed file `descriptor` the name `path`. False: see errno.
bool GiveName(int descriptor, const std::string& path) {
  const std::string open_file = absl::StrCat("/proc/self/fd/", descriptor);
  const auto link = [&] {
    return linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
  };
  if (link()) return true;
  return errno == EEXIST && unlink(path.c_str()) == 0 && link();
}

// Writes a file that has no name until it is whole. False if that failed, as on a file system without unnamed
// files, such as NFS.
bool WriteUnnamed(const std::string& folder, const std::string& path, std::string_view text) {
  const int descriptor = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, kFileMode);
  if (descriptor < 0) return false;
  const bool has_name = WriteAll(descriptor, text) && GiveName(descriptor, path);
  return close(descriptor) == 0 && has_name;  // Some file systems report here that the disk is full.
}

// Writes a file that has another name until it is whole.
bool WritePartial(const std::string& path, std::string_view text) {
  const std::string partial = absl::StrCat(path, ".partial");
  const int descriptor = open(partial.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, kFileMode);
  if (descriptor < 0) return false;
  const bool is_written = WriteAll(descriptor, text);
  if (close(descriptor) == 0 && is_written && std::rename(partial.c_str(), path.c_str()) == 0) return true;
  const int error = errno;
  unlink(partial.c_str());
  errno = error;
  return false;
}

// Creates the file's folder, if it is missing, and the file. mpirun may end the process at any time: a reader
// must not see half a file, and none should stay.
absl::Status WriteFile(const std::string& folder, const std::string& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return CannotWrite(path, error.value());
  if (WriteUnnamed(folder, path, text) || WritePartial(path, text)) return absl::OkStatus();
  return CannotWrite(path, errno);
}

// The same, in a thread of its own: a file system may hang.
std::future<absl::Status> StartWriting(const std::string& folder, const std::string& path,
                                       const std::string& text) {
  std::packaged_task<absl::Status()> task([=] { return WriteFile(folder, path, text); });
  std::future<absl::Status> written = task.get_future();
  try {
    std::thread(std::move(task)).detach();
  } catch (const std::system_error&) {  // The process may have no more threads.
    std::promise<absl::Status> promise;
    promise.set_value(WriteFile(folder, path, text));
    return promise.get_future();
  }
  return written;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Watchdog>> Watchdog::Start(const Recorder& recorder, Options options,
                                                          std::function<int64_t()> now,
                                                          std::function<void(int)> end) {
  std::unique_ptr<Watchdog> watchdog(
      new Watchdog(recorder, std::move(options), std::move(now), std::move(end)));
  WEFT_ASSIGN_OR_RETURN(watchdog->thread_,
                        StartThread("the watchdog of the engine", [self = watchdog.get()] { self->Run(); }));
  return watchdog;
}

Watchdog::Watchdog(const Recorder& recorder, Options options, std::function<int64_t()> now,
                   std::function<void(int)> end)
    : recorder_(recorder),
      options_(std::move(options)),
      now_(std::move(now)),
      end_(std::move(end)),
      dump_path_(absl::StrCat(options_.dump_folder, "/rank-", options_.rank, ".json")),
      clock_(now_()) {
  // Move the dump of an earlier run away: a rank that is killed writes none, and would seem to have written
  // it. Under `weft launch` the earlier run may have failed seconds ago, and its dumps tell why.
  if (!options_.dump_folder.empty() &&
      std::rename(dump_path_.c_str(), absl::StrCat(dump_path_, ".old").c_str()) != 0)
    std::remove(dump_path_.c_str());
}

Watchdog::~Watchdog() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::Run() {
  constexpr int64_t kChecksPerLimit = 20;
  const std::chrono::nanoseconds interval(
      std::clamp<int64_t>(options_.limit_ns / kChecksPerLimit, kMillisecond, kCheckIntervalNs));
  const auto is_stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; };
  while (true) {
    int64_t now = 0;
    {
      const MutexLock lock(mutex_);
      if (stopped_.wait_for(mutex_, interval, is_stopped)) return;
      now = now_();
      clock_.Read(now);
    }
    DumpFailure();
    if (MustEnd(now)) {
      EndProcess(recorder_.failure());
      return;
    }
    const std::optional<Recorder::StuckOperation> stuck = recorder_.OldestRunning();
    if (!stuck || !IsStuck(*stuck, now)) continue;
    EndProcess(absl::DeadlineExceededError(absl::StrCat("an operation has run for over ",
                                                        options_.limit_ns / 1'000'000'000,
                                                        " s; ending the process: ", stuck->text)));
    return;
  }
}

Watchdog::Extension Watchdog::Extend(Task task, int64_t until_ns) {
  const MutexLock lock(mutex_);
  const int64_t now = now_();
  const int64_t until = until_ns - now + clock_.Read(now);
  extended_[static_cast<size_t>(task)].until_ns.insert(until);
  return {*this, task, until};
}

void Watchdog::EndExtension(Task task, int64_t until_ns) {
  const int64_t now = now_();
  const MutexLock lock(mutex_);
  Extended& extended = extended_[static_cast<size_t>(task)];
  extended.until_ns.erase(extended.until_ns.find(until_ns));
  extended.last_end_ns = now;
}

bool Watchdog::IsExtended(Task task, int64_t now) {
  const MutexLock lock(mutex_);
  const Extended& extended = extended_[static_cast<size_t>(task)];
  return !extended.until_ns.empty() && clock_.Read(now) < *extended.until_ns.rbegin();
}

bool Watchdog::IsStuck(const Recorder::StuckOperation& operation, int64_t now) {
  if (IsExtended(Task::kWait, now)) return false;
  const MutexLock lock(mutex_);
  const int64_t since =
      std::max(operation.started_ns, extended_[static_cast<size_t>(Task::kWait)].last_end_ns);
  const int64_t unpaused_now = clock_.Read(now);
  if (since != watched_since_ns_) {  // The first check of this operation, or since a task has ended.
    watched_since_ns_ = since;
    watched_from_ns_ = unpaused_now - (now - std::max(since, clock_.resumed_ns()));
  }
  return unpaused_now - watched_from_ns_ >= options_.limit_ns;
}

bool Watchdog::MustEnd(int64_t now) {
  if (!absl::IsDeadlineExceeded(recorder_.failure()) || IsExtended(Task::kReset, now)) {
    failed_checks_ = 0;
    return false;
  }
  return ++failed_checks_ > kChecksAfterFailure;
}

void Watchdog::DumpFailure() {
  if (NeedsDump(recorder_.failure())) Dump();
}

void Watchdog::EndProcess(const absl::Status& cause) {
  // Another thread ends the process, and with it this wait.
  if (ending_.exchange(true)) return has_ended_.wait(false);
  const std::string dump = Dump();
  std::fprintf(stderr, "weft: rank %d: %s%s\n", options_.rank, std::string(cause.message()).c_str(),
               dump.c_str());
  std::fflush(stderr);
  if (options_.ranks > 1) std::this_thread::sleep_for(absl::ToChronoMilliseconds(options_.dump_time));
  end_(kExitRankMissing);
  has_ended_ = true;  // In a test.
  has_ended_.notify_all();
}

std::string Watchdog::Dump() {
  if (options_.dump_folder.empty()) return "";
  const MutexLock lock(dump_mutex_);
  const int64_t number = recorder_.failure_number();
  if (!dumped_.empty() && number == dumped_number_) return dumped_;
  const auto hangs = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(dump_mutex_) {
    return writing_.wait_for(absl::ToChronoMilliseconds(options_.dump_time)) != std::future_status::ready;
  };
  dumped_ = absl::StrCat("; no flight recorder: '", dump_path_, "' takes longer than ",
                         absl::FormatDuration(options_.dump_time), " to write");
  if (writing_.valid() && hangs()) return dumped_;  // An earlier dump, which would replace this one later.
  dumped_number_ = number;
  writing_ = StartWriting(options_.dump_folder, dump_path_, recorder_.Json());
  if (hangs()) return dumped_;
  const absl::Status written = writing_.get();
  dumped_ = written.ok() ? absl::StrCat("; run: weft diagnose ", options_.dump_folder)
                         : absl::StrCat("; no flight recorder: ", written.message());
  return dumped_;
}

}  // namespace weft
