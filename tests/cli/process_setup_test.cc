#include "src/cli/process_setup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <system_error>

#include <gtest/gtest.h>

#include "weft/core/exit_codes.h"

namespace weft {
namespace {

using ::testing::ExitedWithCode;

// Throws where nothing can catch it.
template <typename Exception>
[[noreturn]] void ThrowUncaught(const Exception& exception) noexcept {
  const auto raise = [&] { throw exception; };
  raise();
  std::abort();
}

template <typename Exception>
void EndWith(const Exception& exception) {
  ReportUncaughtExceptions();
  ThrowUncaught(exception);
}

const std::system_error kNoThread(std::make_error_code(std::errc::resource_unavailable_try_again));

TEST(ReportUncaughtExceptionsDeathTest, NamesTheLimitsOfThreads) {
  EXPECT_EXIT(EndWith(kNoThread), ExitedWithCode(kExitFailed),
              "weft: cannot start a thread: .*ulimit -u.* or of memory");
}

TEST(ReportUncaughtExceptionsDeathTest, NamesAnyOtherException) {
  EXPECT_EXIT(EndWith(std::bad_alloc()), ExitedWithCode(kExitFailed), "weft: out of memory");
  EXPECT_EXIT(EndWith(std::runtime_error("odd")), ExitedWithCode(kExitFailed),
              "weft: uncaught exception: odd");
}

constexpr rlim_t kAddressLimit = rlim_t{1} << 50;

template <typename Exception>
void EndUnder(const rlimit& limit, const Exception& exception) {
  if (setrlimit(RLIMIT_AS, &limit) == 0) EndWith(exception);
}

TEST(ReportUncaughtExceptionsDeathTest, NamesTheLimitOfAddresses) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  if (limit.rlim_max < kAddressLimit) GTEST_SKIP() << "the hard limit of addresses is lower (ulimit -Hv)";
  limit.rlim_cur = kAddressLimit;
  EXPECT_EXIT(EndUnder(limit, std::bad_alloc()), ExitedWithCode(kExitFailed),
              "out of memory.*ulimit -v is 1099511627776\n");
  EXPECT_EXIT(EndUnder(limit, kNoThread), ExitedWithCode(kExitFailed),
              "cannot start a thread.*ulimit -v is 1099511627776\n");
}

// True if `fd` leads to /dev/null.
bool IsNull(int fd) {
  char target[16] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return readlink(link.c_str(), target, sizeof(target) - 1) > 0 && std::string(target) == "/dev/null";
}

void CloseAndOpen() {
  close(STDIN_FILENO);
  close(STDOUT_FILENO);
  OpenStandardStreams();
  _exit(IsNull(STDIN_FILENO) && IsNull(STDOUT_FILENO) && !IsNull(STDERR_FILENO) ? 0 : 1);
}

TEST(OpenStandardStreamsDeathTest, OpensOnlyThoseThatAreClosed) {
  EXPECT_EXIT(CloseAndOpen(), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft
