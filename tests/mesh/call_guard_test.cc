#include "src/mesh/base/call_guard.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/no_threads.h"
#include "tests/support/status_matchers.h"

namespace weft::internal {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::weft::testing::NoThreads;
using ::weft::testing::StatusIs;

// The message of the guard, or an empty one after a minute without a call.
std::string Await(std::promise<std::string>& ended) {
  std::future<std::string> message = ended.get_future();
  return message.wait_for(std::chrono::minutes(1)) == std::future_status::ready ? message.get() : "";
}

std::unique_ptr<CallGuard> Guard(std::function<void(const std::string&)> end) {
  return CallGuard::Start(std::move(end)).value();
}

TEST(CallGuard, EndsTheProcessWithAMessageThatNamesTheCall) {
  std::promise<std::string> ended;
  const auto guard = Guard([&](const std::string& message) { ended.set_value(message); });
  const CallGuard::Scope call = guard->Enter("MPI_Init", absl::Milliseconds(1), "look at rank 3");
  EXPECT_THAT(Await(ended),
              AllOf(StartsWith("MPI_Init has not finished within 1ms"), EndsWith("look at rank 3")));
}

TEST(CallGuard, DoesNotEndTheProcessForCallsThatReturnInTime) {
  std::promise<std::string> ended;
  const auto guard = Guard([&](const std::string& message) { ended.set_value(message); });
  for (int call = 0; call < 100; ++call) {
    const CallGuard::Scope scope = guard->Enter("a quick call", absl::Hours(1), "");
  }
  const CallGuard::Scope late = guard->Enter("a late call", absl::ZeroDuration(), "");
  EXPECT_THAT(Await(ended), HasSubstr("a late call"));
}

TEST(CallGuard, StopsAtOnceWhenDestroyed) {
  std::atomic<bool> ended{false};
  {
    const auto guard = Guard([&](const std::string&) { ended = true; });
    const CallGuard::Scope call = guard->Enter("a call", absl::InfiniteDuration(), "");
  }
  EXPECT_FALSE(ended);
}

TEST(CallGuard, LeavesTheSignalsToTheProgramIfTheSystemHasNoThread) {
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  {
    const NoThreads none;
    EXPECT_THAT(CallGuard::Start([](const std::string&) {}),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("for the deadlines of MPI")));
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD})
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
}

}  // namespace
}  // namespace weft::internal
