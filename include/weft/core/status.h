// Status helpers: early return on errors, and an abort for broken invariants.
//
// An error that a caller can cause or meet is an `absl::Status`. WEFT_CHECK is for conditions that only a
// defect in weft can violate.
#pragma once

#include <string_view>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

namespace weft {

// Prints `what`, the condition, the file and the line, then aborts. Out of line: a check costs one compare
// inline.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, std::string_view what);

// Abseil may be built with its own string_view type. These convert between it and std::string_view.
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }
inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

// Returns `status` with "<context>: " in front of its message. OK stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// Ends the message of an error about data of another rank that no rank of this version sends.
inline constexpr const char* kSameVersionRemedy = ": run the same version of weft on all ranks";

// Writes an error to standard error. For code that cannot return a status, such as a destructor.
void Report(const absl::Status& status);

}  // namespace weft

#define WEFT_CHECK(condition, what)                              \
  do {                                                           \
    if (!(condition)) [[unlikely]] {                             \
      ::weft::CheckFailed(__FILE__, __LINE__, #condition, what); \
    }                                                            \
  } while (false)

#define WEFT_RETURN_IF_ERROR(expression)                                           \
  do {                                                                             \
    if (absl::Status weft_status = (expression); !weft_status.ok()) [[unlikely]] { \
      return weft_status;                                                          \
    }                                                                              \
  } while (false)

// `target` may be a declaration, which cannot be parenthesized. NOLINTBEGIN(bugprone-macro-parentheses)
#define WEFT_CONCAT_INNER(a, b) a##b
#define WEFT_CONCAT(a, b) WEFT_CONCAT_INNER(a, b)
#define WEFT_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                   \
  if (!result.ok()) [[unlikely]] {                              \
    return std::move(result).status();                          \
  }                                                             \
  target = std::move(result).value()
// Usage: WEFT_ASSIGN_OR_RETURN(auto x, StatusOrReturningCall());
#define WEFT_ASSIGN_OR_RETURN(target, expression) \
  WEFT_ASSIGN_OR_RETURN_INNER(WEFT_CONCAT(weft_result_, __LINE__), target, expression)
// NOLINTEND(bugprone-macro-parentheses)
