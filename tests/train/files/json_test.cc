#include "src/train/files/json.h"

#include <gmock/gmock.h>

namespace weft {
namespace {

TEST(Json, KeepsTheOrderOfKeys) {
  const Json json = ParseJson(R"({"b": 1, "a": [2.5, null, true]})");
  EXPECT_EQ(JsonText(json), R"({"b":1,"a":[2.5,null,true]})");
  EXPECT_EQ(JsonText({{"b", 1}}, 2), "{\n  \"b\": 1\n}");
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
