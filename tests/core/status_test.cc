#include "weft/core/status.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/cord.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::weft::testing::StatusIs;

TEST(Annotate, PutsTheContextInFrontAndKeepsCodeAndPayloads) {
  absl::Status cause = absl::NotFoundError("no such file");
  cause.SetPayload("weft/path", absl::Cord("a.bin"));
  const absl::Status annotated = Annotate(cause, "loading data");
  EXPECT_THAT(annotated, StatusIs(absl::StatusCode::kNotFound, "loading data: no such file"));
  EXPECT_EQ(annotated.GetPayload("weft/path"), absl::Cord("a.bin"));
}

TEST(Annotate, LeavesOkUnchanged) { EXPECT_OK(Annotate(absl::OkStatus(), "context")); }

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError(absl::StrCat(value, " is odd"));
  return value / 2;
}

absl::Status Quarter(int value, int& result) {
  WEFT_ASSIGN_OR_RETURN(const int half, Half(value));
  WEFT_RETURN_IF_ERROR(Half(half).status());
  WEFT_ASSIGN_OR_RETURN(result, Half(half));
  return absl::OkStatus();
}

TEST(StatusMacros, ReturnTheFirstError) {
  int result = 0;
  EXPECT_OK(Quarter(12, result));
  EXPECT_EQ(result, 3);
  EXPECT_THAT(Quarter(6, result), StatusIs(absl::StatusCode::kInvalidArgument, "3 is odd"));
  EXPECT_THAT(Quarter(5, result), StatusIs(absl::StatusCode::kInvalidArgument, "5 is odd"));
  EXPECT_EQ(result, 3);
}

TEST(CheckDeathTest, PrintsTheInvariantAndItsLocation) {
  EXPECT_DEATH(WEFT_CHECK(1 + 1 == 3, "arithmetic"),
               "status_test.cc:[0-9]+: broken invariant: arithmetic \\(1 \\+ 1 == 3\\)");
}

// Every rank's operations end with copies of one error, and whichever thread drops the last copy frees it.
TEST(SharedError, IsFreedByTheThreadThatDropsTheLastCopy) {
  constexpr int kErrors = 200;
  for (int i = 0; i < kErrors; ++i) {
    std::vector<absl::Status> copies(2, absl::InternalError("rank 3 left"));
    std::thread other([copy = std::move(copies.back())]() mutable {
      EXPECT_THAT(absl::Status(copy), StatusIs(absl::StatusCode::kInternal, "rank 3 left"));
      copy = absl::OkStatus();
    });
    copies.clear();
    other.join();
  }
}

}  // namespace
}  // namespace weft
