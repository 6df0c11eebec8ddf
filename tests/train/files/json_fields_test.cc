#include "src/train/files/json_fields.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/core/dtype.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// The message of the first error that `read` leaves in a reader of the object.
template <typename Read>
std::string MessageOf(const Json& object, const Read& read) {
  JsonFields fields(object, "'f.json'", "write it again");
  read(fields);
  return std::string(fields.status().message());
}

TEST(JsonFields, ReadsValuesOfEveryKind) {
  const Json json = {{"whole", -3},      {"unsigned", std::numeric_limits<uint64_t>::max()},
                     {"number", 0.5},    {"bool", true},
                     {"text", "a"},      {"dtype", "bf16"},
                     {"list", {1.5, 2}}, {"object", {{"inside", 7}}}};
  JsonFields fields(json, "'f.json'");
  EXPECT_EQ(fields.Whole("whole", -3, 0), -3);
  EXPECT_EQ(fields.Unsigned("unsigned"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(fields.Number("number", 0, 1), 0.5);
  EXPECT_EQ(fields.Positive("number"), 0.5);
  EXPECT_TRUE(fields.Bool("bool"));
  EXPECT_EQ(fields.Text("text"), "a");
  EXPECT_EQ(fields.OneOf("dtype", {DType::kF32, DType::kBF16}), DType::kBF16);
  EXPECT_EQ(fields.PositiveList("list", 2), (std::vector<float>{1.5F, 2.0F}));
  EXPECT_EQ(fields.Inner("object").Whole("inside", 0, 7), 7);
  EXPECT_OK(fields.status());
}

TEST(JsonFields, TakesTheFallbackOfAKeyThatIsMissingOrNull) {
  const Json json = {{"null", nullptr}};
  JsonFields fields(json, "'f.json'");
  for (const char* key : {"null", "none"}) {
    EXPECT_FALSE(fields.Has(key));
    EXPECT_EQ(fields.Whole(key, 0, 9, 5), 5);
    EXPECT_EQ(fields.Number(key, 0, 9, 0.5), 0.5);
    EXPECT_EQ(fields.Positive(key, 0.5), 0.5);
    EXPECT_TRUE(fields.Bool(key, true));
  }
  EXPECT_OK(fields.status());
}

TEST(JsonFields, NamesPlaceKeyValueAndRemedy) {
  const Json json = {{"a", 10}, {"b", "x"}, {"list", {1, -1}}};
  EXPECT_EQ(MessageOf(json, [](JsonFields& fields) { fields.Text("none"); }),
            "'f.json': none is missing: write it again");
  EXPECT_EQ(MessageOf(json, [](JsonFields& fields) { EXPECT_EQ(fields.Whole("a", 1, 9), 1); }),
            "'f.json': a is 10, but it must be a whole number from 1 to 9: write it again");
  EXPECT_EQ(MessageOf(json, [](JsonFields& fields) { fields.Number("b", 0, 1); }),
            "'f.json': b is \"x\", but it must be a number from 0 to 1: write it again");
  EXPECT_EQ(MessageOf(json, [](JsonFields& fields) { EXPECT_EQ(fields.PositiveList("list", 2).size(), 0U); }),
            "'f.json': list is [1,-1], but it must be a list of 2 positive numbers in the range of float: "
            "write it again");
  EXPECT_EQ(MessageOf(json,
                      [](JsonFields& fields) {
                        fields.OneOf("b", {DType::kF32, DType::kBF16});
                      }),
            "'f.json': b is \"x\", but it must be one of f32, bf16: write it again");
  EXPECT_THAT(MessageOf(json, [](JsonFields& fields) { fields.Inner("a"); }), HasSubstr("must be an object"));
}

TEST(JsonFields, RefusesNumbersThatDoNotFit) {
  constexpr auto kMax = std::numeric_limits<int64_t>::max();
  const Json json = {
      {"above", std::numeric_limits<uint64_t>::max()}, {"half", 0.5}, {"whole", 3.0}, {"tiny", 1e-60}};
  for (const char* key : {"above", "half", "whole"}) {
    EXPECT_THAT(MessageOf(json, [&](JsonFields& fields) { EXPECT_EQ(fields.Whole(key, 0, kMax), 0); }),
                HasSubstr(key));
  }
  EXPECT_THAT(MessageOf(json, [](JsonFields& fields) { fields.Positive("tiny"); }),
              HasSubstr("range of float"));
  EXPECT_THAT(MessageOf({{"a", -1}}, [](JsonFields& fields) { fields.Unsigned("a"); }),
              HasSubstr("not negative"));
}

TEST(JsonFields, KeepsTheFirstErrorOfAnObjectAndOfThoseInsideIt) {
  const Json json = {{"object", {{"a", "x"}}}};
  JsonFields fields(json, "'f.json'");
  JsonFields inner = fields.Inner("object");
  inner.Bool("a");
  fields.Bool("none");
  EXPECT_EQ(fields.status(), inner.status());
  EXPECT_THAT(fields.status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a is \"x\"")));
}

TEST(JsonFields, RefusesWhatIsNoObject) {
  const auto nothing = [](JsonFields& fields) { EXPECT_FALSE(fields.Has("a")); };
  EXPECT_EQ(MessageOf(ParseJson("{"), nothing), "'f.json' is not JSON: write it again");
  EXPECT_EQ(MessageOf(Json::array(), nothing), "'f.json' has [] where an object must be: write it again");
}

TEST(JsonFields, AllowsOneValueOfAFeatureThatIsNotSupported) {
  const Json json = {{"on", true}, {"off", false}, {"null", nullptr}};
  JsonFields fields(json, "'f.json'");
  fields.RequireOnly("off", false);
  fields.RequireOnly("null", false);
  fields.RequireOnly("none", false);
  EXPECT_OK(fields.status());
  fields.RequireOnly("on", false);
  EXPECT_THAT(fields.status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("on is true; weft supports only false")));
}

}  // namespace
}  // namespace weft
