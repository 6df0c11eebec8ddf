#include "src/comm/links/credit_pace.h"

#include <string>
#include <vector>

#include <absl/status/status.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr int64_t kAtOnce = 100;

TEST(CreditPace, AllowsEverythingUntilARateIsKnown) {
  CreditPace pace;
  pace.Count(1'000'000, /*now_ns=*/5);
  EXPECT_TRUE(pace.Allows(1'000'000, /*now_ns=*/5, /*rate=*/0, kAtOnce));
}

TEST(CreditPace, AllowsTheFirstCreditOfAnySize) {
  EXPECT_TRUE(CreditPace().Allows(1'000'000, /*now_ns=*/5, /*rate=*/0.001, kAtOnce));
}

TEST(CreditPace, CountsTheTimeFromTheFirstCredit) {
  for (const int64_t begin_ns : {0, 7'000'000}) {
    CreditPace pace;
    pace.Count(60, begin_ns);
    EXPECT_TRUE(pace.Allows(40, begin_ns, 3, kAtOnce));
    EXPECT_FALSE(pace.Allows(41, begin_ns, 3, kAtOnce));
    pace.Count(40, begin_ns + 1);
    // Twice the rate.
    EXPECT_TRUE(pace.Allows(60, begin_ns + 10, 3, kAtOnce));
    EXPECT_FALSE(pace.Allows(61, begin_ns + 10, 3, kAtOnce));
  }
}

struct Stream {
  char name;
  int credits;
};

TEST(CreditInTurn, GivesACreditToEachStreamBeforeTheNextOfAny) {
  std::vector<Stream> streams = {{'a', 2}, {'b', 0}, {'c', 4}, {'d', 1}};
  std::string given;
  const auto credit = [&](Stream& stream) -> absl::StatusOr<bool> {
    if (stream.credits == 0) return false;
    --stream.credits;
    given += stream.name;
    return true;
  };
  absl::StatusOr<bool> any = CreditInTurn(streams, credit);
  ASSERT_TRUE(any.ok());
  EXPECT_TRUE(*any);
  EXPECT_EQ(given, "acdaccc");
  any = CreditInTurn(streams, credit);
  ASSERT_TRUE(any.ok());
  EXPECT_FALSE(*any);
}

TEST(CreditInTurn, EndsWithTheFirstError) {
  for (const int failing : {0, 1, 3}) {
    std::vector<Stream> streams = {{'a', 2}, {'b', 2}};
    int credits = 0;
    const absl::StatusOr<bool> any = CreditInTurn(streams, [&](Stream& stream) -> absl::StatusOr<bool> {
      if (credits++ == failing) return absl::InternalError("no credit");
      return stream.credits-- > 0;
    });
    EXPECT_EQ(any.status(), absl::InternalError("no credit"));
    EXPECT_EQ(credits, failing + 1);
  }
}

}  // namespace
}  // namespace weft
