#include "src/train/files/json.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>

namespace weft {
namespace {

TEST(Json, KeepsTheOrderOfKeys) {
  const Json json = ParseJson(R"({"b": 1, "a": [2.5, null, true]})");
  EXPECT_EQ(JsonText(json), R"({"b":1,"a":[2.5,null,true]})");
  EXPECT_EQ(JsonText({{"b", 1}}, 2), "{\n  \"b\": 1\n}");
}

TEST(Json, AgreesWithTheParserOfTheLibrary) {
  for (const char* text :
       {"null", "-1", "18446744073709551615", "1e3", "\"\\u00e4\"", "[]", "{}", "[[1],[],{\"a\":{}}]",
        R"({"a":{"b":[1,{"c":null}],"d":true},"e":"f","g":[[],[{}]]})"}) {
    EXPECT_EQ(ParseJson(text), Json::parse(text)) << text;
    EXPECT_EQ(JsonText(ParseJson(text)), Json::parse(text).dump()) << text;
  }
}

TEST(Json, TheLastValueOfAKeyRemains) {
  EXPECT_EQ(JsonText(ParseJson(R"({"a":1,"b":2,"a":[3]})")), R"({"a":[3],"b":2})");
}

// A parser that compared each key with all keys before it would need minutes.
TEST(Json, ReadsAnObjectOfManyKeys) {
  constexpr size_t kKeys = 600'000;
  std::string text = "{\"k\":0";
  for (size_t i = 1; i < kKeys; ++i) absl::StrAppend(&text, ",\"k", i, "\":", i);
  const Json json = ParseJson(text + "}");
  EXPECT_EQ(json.size(), kKeys);
  EXPECT_EQ(json.back(), kKeys - 1);
}

TEST(Json, TextThatIsNotJsonHasNoType) {
  for (const char* text : {"", "{", "{\"a\": 1,}", "1 2", "\"\xff\""}) {
    const Json json = ParseJson(text);
    EXPECT_FALSE(json.is_object() || json.is_array() || json.is_primitive()) << text;
  }
}

TEST(Json, ReplacesBytesThatAreNotUtf8) { EXPECT_EQ(JsonText("a\xff"), "\"a\xef\xbf\xbd\""); }

}  // namespace
}  // namespace weft
