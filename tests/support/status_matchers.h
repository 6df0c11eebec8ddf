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

// Nearly every test uses the following, and the compiler takes a tenth of a second for each instance of a
// matcher that is a template. Few of these are templates for this reason.

// What EXPECT_OK and ASSERT_OK check.
inline ::testing::AssertionResult CheckOk(const char* expression, const absl::Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << expression << " is not OK: " << status.ToString();
}
template <typename T>
::testing::AssertionResult CheckOk(const char* expression, const absl::StatusOr<T>& result) {
  return CheckOk(expression, result.status());
}

// Matches an absl::Status or absl::StatusOr that is OK. Tests use it as Not(IsOk()). A test that expects OK
// uses EXPECT_OK.
class IsOk {
 public:
  using is_gtest_matcher = void;

  template <typename T>
  bool MatchAndExplain(const T& result, ::testing::MatchResultListener* listener) const {
    *listener << StatusOf(result).ToString();
    return result.ok();
  }
  void DescribeTo(std::ostream* out) const { *out << "is OK"; }
  void DescribeNegationTo(std::ostream* out) const { *out << "is not OK"; }
};

// Matches an absl::Status or absl::StatusOr by its code and message.
class StatusIs {
 public:
  using is_gtest_matcher = void;

  // StatusIs(absl::StatusCode::kNotFound, HasSubstr("'shard'")).
  StatusIs(absl::StatusCode code, ::testing::Matcher<const std::string&> message)
      : code_(code), message_(std::move(message)) {}

  template <typename T>
  bool MatchAndExplain(const T& result, ::testing::MatchResultListener* listener) const {
    const absl::Status& status = StatusOf(result);
    *listener << status.ToString();
    return status.code() == code_ && message_.Matches(std::string(status.message()));
  }
  void DescribeTo(std::ostream* out) const {
    *out << "has code " << absl::StatusCodeToString(code_) << " and a message that ";
    message_.DescribeTo(out);
  }
  void DescribeNegationTo(std::ostream* out) const {
    *out << "has another code than " << absl::StatusCodeToString(code_) << ", or a message that ";
    message_.DescribeNegationTo(out);
  }

 private:
  absl::StatusCode code_;
  ::testing::Matcher<const std::string&> message_;
};

}  // namespace weft::testing

#define EXPECT_OK(expression) EXPECT_PRED_FORMAT1(::weft::testing::CheckOk, expression)
#define ASSERT_OK(expression) ASSERT_PRED_FORMAT1(::weft::testing::CheckOk, expression)

// A declaration cannot stand in parentheses. NOLINTBEGIN(bugprone-macro-parentheses)
#define WEFT_ASSERT_OK_AND_ASSIGN_INNER(result, target, expression) \
  auto result = (expression);                                       \
  ASSERT_OK(result);                                                \
  target = std::move(result).value()
// ASSERT_OK_AND_ASSIGN(auto x, StatusOrReturningCall());
#define ASSERT_OK_AND_ASSIGN(target, expression) \
  WEFT_ASSERT_OK_AND_ASSIGN_INNER(WEFT_CONCAT(weft_result_, __LINE__), target, expression)
// NOLINTEND(bugprone-macro-parentheses)
