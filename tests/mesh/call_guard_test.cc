#include "src/mesh/base/call_guard.h"

#include <atomic>
#include <chrono>
#include <future>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::internal {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The message of the guard, or an empty one after a minute without a call.
std::string Await(std::promise<std::string>& ended) {
  std::future<std::string> message = ended.get_future();
  return message.wait_for(std::chrono::minutes(1)) == std::future_status::ready ? message.get() : "";
}

TEST(CallGuard, EndsTheProcessWithAMessageThatNamesTheCall) {
  std::promise<std::string> ended;
  CallGuard guard([&](const std::string& message) { ended.set_value(message); });
  const CallGuard::Scope call = guard.Enter("MPI_Init", absl::Milliseconds(1), "look at rank 3");
  EXPECT_THAT(Await(ended),
              AllOf(StartsWith("MPI_Init has not finished within 1ms"), EndsWith("look at rank 3")));
}

TEST(CallGuard, DoesNotEndTheProcessForCallsThatReturnInTime) {
  std::promise<std::string> ended;
  CallGuard guard([&](const std::string& message) { ended.set_value(message); });
  for (int call = 0; call < 100; ++call) {
    const CallGuard::Scope scope = guard.Enter("a quick call", absl::Hours(1), "");
  }
  const CallGuard::Scope late = guard.Enter("a late call", absl::ZeroDuration(), "");
  EXPECT_THAT(Await(ended), HasSubstr("a late call"));
}

TEST(CallGuard, StopsAtOnceWhenDestroyed) {
  std::atomic<bool> ended{false};
  {
    CallGuard guard([&](const std::string&) { ended = true; });
    const CallGuard::Scope call = guard.Enter("a call", absl::InfiniteDuration(), "");
  }
  EXPECT_FALSE(ended);
}

}  // namespace
}  // namespace weft::internal
