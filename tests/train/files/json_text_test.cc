#include "src/train/files/json_text.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr JsonLimits kLimits = {.levels = 3, .values = 5, .token_bytes = 8};

std::string ErrorOf(std::string_view text) { return std::string(CheckJsonText(text, kLimits).message()); }

TEST(JsonText, MayUseItsLimits) {
  for (const char* text : {"", "[[[]]]", "[[],[]]", R"({"a":1,"b":2,"c":3})", R"(["12345678"])",
                           R"(["[[[[[["])", R"(["\"[[[["])", "nonsens"}) {
    EXPECT_EQ(ErrorOf(text), "") << text;
  }
}

TEST(JsonText, NamesTheLimitThatItExceeds) {
  EXPECT_THAT(ErrorOf("[[[["), HasSubstr("more than 3 levels"));
  EXPECT_THAT(ErrorOf(R"({"a":[{"b":[]}]})"), HasSubstr("more than 3 levels"));
  EXPECT_THAT(ErrorOf("[1,2,3,4,5,6]"), HasSubstr("more than 5 values"));
  EXPECT_THAT(ErrorOf("1234567890"), HasSubstr("more than 8 bytes"));
  EXPECT_THAT(ErrorOf(R"(["123456789"])"), HasSubstr("more than 8 bytes"));
  EXPECT_THAT(ErrorOf(std::string_view("[1]\0", 4)), HasSubstr("NUL"));
}

TEST(JsonText, IsQuotedWithoutControlCharactersAndUpTo80Characters) {
  EXPECT_EQ(Excerpt("a\x1b[31mb"), "a\\x1b[31mb");
  const std::string whole(80, 'x');
  EXPECT_EQ(Excerpt(whole), whole);
  EXPECT_EQ(Excerpt(absl::StrCat(whole, "x")), absl::StrCat(whole, "…"));
  // Does not cut a character of two bytes.
  const std::string shorter(79, 'x');
  EXPECT_EQ(Excerpt(absl::StrCat(shorter, "ää")), absl::StrCat(shorter, "ä…"));
}

}  // namespace
}  // namespace weft
