#include "src/mesh/base/call_guard.h"

#include <atomic>
#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::internal {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CallGuard, EndsTheProcessWithAMessageThatNamesTheCall) {
  std::promise<std::string> ended;
  CallGuard guard([&](const std::string& message) { ended.set_value(message); });
  const CallGuard::Scope call = guard.Enter("MPI_Init", absl::Milliseconds(1), "look at rank 3");
  EXPECT_THAT(ended.get_future().get(),
              AllOf(StartsWith("MPI_Init has not finished within 1ms"), EndsWith("look at rank 3")));
}

TEST(CallGuard, DoesNotEndTheProcessForCallsThatReturnInTime) {
  std::promise<std::string> ended;
  CallGuard guard([&](const std::string& message) { ended.set_value(message); });
  for (int call = 0; call < 100; ++call) {
    const CallGuard::Scope scope = guard.Enter("a quick call", absl::Hours(1), "");
  }
  const CallGuard::Scope late = guard.Enter("a late call", absl::ZeroDuration(), "");
  EXPECT_THAT(ended.get_future().get(), HasSubstr("a late call"));
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
