#include "weft/core/thread.h"

#include <atomic>
#include <memory>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/no_threads.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::NoThreads;
using ::weft::testing::StatusIs;

TEST(StartThread, RunsABodyThatCanOnlyBeMoved) {
  auto number = std::make_unique<int>(3);
  std::atomic<int> result = 0;
  ASSERT_OK_AND_ASSIGN(std::thread thread,
                       StartThread("a test", [&result, number = std::move(number)] { result = *number; }));
  thread.join();
  EXPECT_EQ(result, 3);
}

TEST(StartThread, NamesThePurposeAndTheLimitsIfTheSystemHasNoThread) {
  const NoThreads none;
  EXPECT_THAT(StartThread("a test", [] {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("cannot start a thread for a test: "), HasSubstr("ulimit -u"),
                             HasSubstr("pids.max of the control group"), HasSubstr("ulimit -v"))));
}

TEST(StartThread, StartsThreadsAgainOnceTheSystemHasThem) {
  { const NoThreads none; }
  ASSERT_OK_AND_ASSIGN(std::thread thread, StartThread("a test", [] {}));
  thread.join();
}

}  // namespace
}  // namespace weft
