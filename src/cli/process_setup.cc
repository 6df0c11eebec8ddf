#include "src/cli/process_setup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <sys/resource.h>
#include <system_error>

#include "weft/core/exit_codes.h"

namespace weft {
namespace {

// Ends a line of standard error, with the limit on addresses if there is one. Allocates nothing.
void PrintAddressLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    std::fprintf(stderr, ": ulimit -v is %ju", uintmax_t{limit.rlim_cur} / 1024);
  std::fputs("\n", stderr);
}

void PrintOutOfMemory() {
  std::fputs(
      "weft: out of memory: use smaller inputs (a model, a batch, or files), or raise the limit of memory",
      stderr);
  PrintAddressLimit();
}

// A thread needs a place in the limit of processes, and addresses for its stack.
void PrintNoThread(const std::system_error& error) {
  std::fprintf(stderr,
               "weft: cannot start a thread: %s: raise the limit of processes (ulimit -u, pids.max of the "
               "control group) or of memory",
               error.what());
  PrintAddressLimit();
}

// REQUIRES: std::terminate was called because of an exception.
void PrintException() {
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    PrintOutOfMemory();
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again)
      PrintNoThread(error);
    else
      std::fprintf(stderr, "weft: uncaught exception: %s\n", error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: uncaught exception: %s\n", error.what());
  } catch (...) {
    std::fputs("weft: uncaught exception of an unknown type\n", stderr);
  }
}

[[noreturn]] void EndProcess() {
  if (std::current_exception() == nullptr) std::abort();  // A defect: a core file helps.
  PrintException();
  std::_Exit(kExitFailed);
}

}  // namespace

void OpenStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open returns the lowest descriptor that is free.
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) open("/dev/null", O_RDWR | O_NOCTTY);
  }
}

void ReportUncaughtExceptions() { std::set_terminate(EndProcess); }

int EndOutput(int code) {
  const bool is_complete = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_complete || code != kExitDone) return code;
  std::fputs("weft: not all of standard output could be written: is its disk full?\n", stderr);
  return kExitFailed;
}

}  // namespace weft
