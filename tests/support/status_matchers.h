// Matchers and macros for absl::Status and absl::StatusOr.
//
// ASSERT_OK and ASSERT_OK_AND_ASSIGN return from the body of a test. Functions that return a Status, such as
// the body of a rank, use WEFT_RETURN_IF_ERROR instead; their caller checks the result.
#pragma once

#include <ostream>
#include <string>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <gmock/gmock.h>

#include "weft/core/status.h"

namespace weft::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

// StatusIs(absl::StatusCode::kNotFound, HasSubstr("'shard'")).
MATCHER_P2(StatusIs, code, message,
           "has code " + absl::StatusCodeToString(code) + " and a message that " +
               ::testing::DescribeMatcher<std::string>(message)) {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code && ::testing::Value(std::string(StatusOf(arg).message()), message);
}

}  // namespace weft::testing

#define EXPECT_OK(expression) EXPECT_THAT(expression, ::weft::testing::IsOk())
#define ASSERT_OK(expression) ASSERT_THAT(expression, ::weft::testing::IsOk())

// A declaration cannot stand in parentheses. NOLINTBEGIN(bugprone-macro-parentheses)
#define WEFT_ASSERT_OK_AND_ASSIGN_INNER(result, target, expression) \
  auto result = (expression);                                       \
  ASSERT_OK(result);                                                \
  target = std::move(result).value()
// ASSERT_OK_AND_ASSIGN(auto x, StatusOrReturningCall());
#define ASSERT_OK_AND_ASSIGN(target, expression) \
  WEFT_ASSERT_OK_AND_ASSIGN_INNER(WEFT_CONCAT(weft_result_, __LINE__), target, expression)
// NOLINTEND(bugprone-macro-parentheses)
