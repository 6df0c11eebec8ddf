#include <atomic>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/no_threads.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/runtime.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::NoThreads;
using ::weft::testing::StatusIs;

TEST(SystemRuntime, WaitsForTheEndOfATask) {
  SystemRuntime runtime;
  std::atomic<bool> has_run = false;
  {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Runtime::Task> task,
                         runtime.Start("a test", [&] { has_run = true; }));
  }
  EXPECT_TRUE(has_run);
}

TEST(SystemRuntime, ReturnsAnErrorIfTheSystemHasNoThread) {
  SystemRuntime runtime;
  const NoThreads none;
  EXPECT_THAT(runtime.Start("a test", [] {}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cannot start a thread for a test")));
}

}  // namespace
}  // namespace weft
