#include "src/cli/toml_reader.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<TomlItem> Items(std::string_view text) {
  const auto items = ReadToml(text);
  EXPECT_TRUE(items.ok()) << items.status();
  return items.ok() ? *items : std::vector<TomlItem>{};
}

std::vector<std::string> ValuesOf(std::string_view text) {
  const std::vector<TomlItem> items = Items(text);
  EXPECT_EQ(items.size(), 1U) << text;
  return items.empty() ? std::vector<std::string>{} : items[0].values;
}

std::string ErrorOf(std::string_view text) {
  const auto items = ReadToml(text);
  EXPECT_EQ(items.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(items.status().message());
}

TEST(TomlReader, ReadsKeysWithTheirLines) {
  const std::vector<TomlItem> items = Items("# A run.\n\n  steps=7\r\n\"lr\" = 1e-2 # high\nx = []");
  ASSERT_EQ(items.size(), 3U);
  EXPECT_EQ(items[0].key, "steps");
  EXPECT_EQ(items[0].line, 3);
  EXPECT_THAT(items[0].values, ElementsAre("7"));
  EXPECT_FALSE(items[0].is_list);
  EXPECT_EQ(items[1].key, "lr");
  EXPECT_EQ(items[1].line, 4);
  EXPECT_THAT(items[1].values, ElementsAre("1e-2"));
  EXPECT_EQ(items[2].line, 5);
  EXPECT_TRUE(items[2].is_list);
  EXPECT_THAT(items[2].values, IsEmpty());
}

TEST(TomlReader, ReadsNothingFromATextWithoutKeys) {
  for (const char* text : {"", "\n\n", "# only a comment", "  \t\r\n#\n"})
    EXPECT_THAT(Items(text), IsEmpty());
}

TEST(TomlReader, SkipsAByteOrderMark) {
  const std::vector<TomlItem> items = Items("\xEF\xBB\xBFsteps = 7");
  ASSERT_EQ(items.size(), 1U);
  EXPECT_EQ(items[0].key, "steps");
  EXPECT_THAT(ErrorOf("\xEF\xBB\xBF\xEF\xBB\xBFsteps = 7"), HasSubstr("line 1: a key"));
}

TEST(TomlReader, KeepsSpecialCharactersOfAString) {
  EXPECT_THAT(ValuesOf("data = \"a # b, [c] = d\"  # a comment"), ElementsAre("a # b, [c] = d"));
  EXPECT_THAT(ValuesOf(R"(data = "a\"b\\c\td")"), ElementsAre("a\"b\\c\td"));
  EXPECT_THAT(ValuesOf(R"(data = "\b\f\n\r\u001b\u0041\u00e9\u20AC")"), ElementsAre("\b\f\n\r\x1b"
                                                                                    "A\u00e9\u20ac"));
  EXPECT_THAT(ValuesOf(R"(data = 'a\tb"')"), ElementsAre("a\\tb\""));
  EXPECT_THAT(ValuesOf("data = \"\""), ElementsAre(""));
  EXPECT_THAT(ValuesOf("data = folder/corpus-1.u32"), ElementsAre("folder/corpus-1.u32"));
}

TEST(TomlReader, ReadsListsOverSeveralLines) {
  EXPECT_THAT(ValuesOf("data = [\"x\", 'y z', 3]"), ElementsAre("x", "y z", "3"));
  EXPECT_THAT(ValuesOf("data = [  # two\n  \"x\",\n\n  \"y\",  # the last\n]\n"), ElementsAre("x", "y"));
}

TEST(TomlReader, NamesTheLineOfAnError) {
  EXPECT_THAT(ErrorOf("steps = 1\n[train]\nlr = 2"), HasSubstr("line 2: sections are not supported"));
  EXPECT_THAT(ErrorOf("a = 1\nb\n"), HasSubstr("line 2: '=' and a value must follow the key 'b'"));
  EXPECT_THAT(ErrorOf("a.b = 1\n"), HasSubstr("must follow the key 'a'"));
  EXPECT_THAT(ErrorOf("= 1\n"), HasSubstr("a key must stand here"));
  EXPECT_THAT(ErrorOf("a =\n"), HasSubstr("a value must stand here"));
  EXPECT_THAT(ErrorOf("a = {}\n"), HasSubstr("a value must stand here"));
  EXPECT_THAT(ErrorOf("a = 1 2\n"), HasSubstr("a line break must follow the value of 'a'"));
  EXPECT_THAT(ErrorOf("a = \"x\ny\""), HasSubstr("line 1: a closing \" is missing"));
  EXPECT_THAT(ErrorOf("a = 'x"), HasSubstr("a closing ' is missing"));
  EXPECT_THAT(ErrorOf("a = '''x\ny'''"), HasSubstr("strings of several lines are not supported"));
  EXPECT_THAT(ErrorOf("a = \"\\x41\""), HasSubstr("the only escapes are"));
  for (const char* digits : {"", "004", "00G1", "D800", "0000"})
    EXPECT_THAT(ErrorOf(absl::StrCat("a = \"\\u", digits, "\"")),
                HasSubstr("which 0000 and the surrogates D800 to DFFF are not"))
        << digits;
  EXPECT_THAT(ErrorOf("a = \"\\"), HasSubstr("the only escapes are"));
  EXPECT_THAT(ErrorOf(std::string_view("a = \"x\0y\"", 9)), HasSubstr("control character"));
  EXPECT_THAT(ErrorOf("a = [1, 2\nb = 3"), HasSubstr("line 2: a comma or ']' must follow"));
  EXPECT_THAT(ErrorOf("a = [[1]]"), HasSubstr("a value must stand here"));
  EXPECT_THAT(ErrorOf("a = ["), HasSubstr("a value must stand here"));
}

}  // namespace
}  // namespace weft
