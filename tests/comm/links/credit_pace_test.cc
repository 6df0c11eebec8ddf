#include "src/comm/links/credit_pace.h"

#include <string>
#include <vector>

#include <absl/status/status.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr int64_t kAtOnce = 1000;
// Bytes in a nanosecond.
constexpr double kRate = 3;

// Gives credits for single bytes until the pace allows no more. Returns how many.
int64_t CreditAll(CreditPace& pace, int64_t now_ns, double rate = kRate) {
  int64_t bytes = 0;
  for (; bytes < 10'000'000 && pace.Admits({now_ns, rate, /*budget=*/0, kAtOnce}, /*stream_bytes=*/1);
       ++bytes)
    pace.Count(1);
  return bytes;
}

TEST(CreditPace, AllowsEverythingUntilARateIsKnown) {
  CreditPace pace;
  EXPECT_EQ(CreditAll(pace, /*now_ns=*/5, /*rate=*/0), 10'000'000);
}

TEST(CreditPace, AllowsABurstAtTheStartAndThenTwiceTheRate) {
  for (const int64_t begin_ns : {0, 7'000'000}) {
    CreditPace pace;
    EXPECT_EQ(CreditAll(pace, begin_ns), kAtOnce);
    EXPECT_EQ(CreditAll(pace, begin_ns), 0);
    EXPECT_EQ(CreditAll(pace, begin_ns + 10), 60);
    EXPECT_EQ(CreditAll(pace, begin_ns + 15), 30);
  }
}

TEST(CreditPace, LosesWhatIsNotUsedForLong) {
  CreditPace pace;
  EXPECT_EQ(CreditAll(pace, 0), kAtOnce);
  const int64_t after_a_second = CreditAll(pace, 1'000'000'000);
  EXPECT_EQ(after_a_second, kAtOnce + static_cast<int64_t>(2 * kRate * 600'000));
}

TEST(CreditPace, FollowsTheRateOfToday) {
  CreditPace pace;
  int64_t now_ns = 0;
  for (; now_ns < 1'000'000; now_ns += 1000) CreditAll(pace, now_ns);
  EXPECT_EQ(CreditAll(pace, now_ns, kRate / 10), 600);
  EXPECT_EQ(CreditAll(pace, now_ns + 1000, kRate), 6000);
}

TEST(CreditPace, HasNoMoreDebtThanTheBurst) {
  CreditPace pace;
  EXPECT_EQ(CreditAll(pace, 0), kAtOnce);
  pace.Count(1'000'000'000);
  EXPECT_EQ(CreditAll(pace, 100), 0);
  EXPECT_EQ(CreditAll(pace, 200), 200);
}

struct Stream {
  char name;
  int credits;
};

// Gives credits for at most `most` messages. Returns the names of the streams in the order of their credits.
std::string CreditNext(CreditPace& pace, std::vector<Stream>& streams, int most = 100) {
  std::string given;
  const absl::StatusOr<bool> any = CreditInTurn(pace, streams, [&](Stream& stream) -> absl::StatusOr<bool> {
    if (stream.credits == 0 || static_cast<int>(given.size()) == most) return false;
    --stream.credits;
    given += stream.name;
    return true;
  });
  EXPECT_TRUE(any.ok());
  EXPECT_EQ(*any, !given.empty());
  return given;
}

TEST(CreditInTurn, GivesACreditToEachStreamBeforeTheNextOfAny) {
  std::vector<Stream> streams = {{'a', 2}, {'b', 0}, {'c', 4}, {'d', 1}};
  CreditPace pace;
  EXPECT_EQ(CreditNext(pace, streams), "acdaccc");
  EXPECT_EQ(CreditNext(pace, streams), "");
}

TEST(CreditInTurn, BeginsBehindTheLastThatGotACredit) {
  std::vector<Stream> streams = {{'a', 9}, {'b', 9}, {'c', 1}};
  CreditPace pace;
  EXPECT_EQ(CreditNext(pace, streams, 1), "a");
  EXPECT_EQ(CreditNext(pace, streams, 1), "b");
  EXPECT_EQ(CreditNext(pace, streams, 3), "cab");
  EXPECT_EQ(CreditNext(pace, streams, 2), "ab");
  streams.pop_back();
  streams.pop_back();
  EXPECT_EQ(CreditNext(pace, streams, 1), "a");
  streams.clear();
  EXPECT_EQ(CreditNext(pace, streams), "");
}

TEST(CreditInTurn, EndsWithTheFirstError) {
  for (const int failing : {0, 1, 3}) {
    std::vector<Stream> streams = {{'a', 2}, {'b', 2}};
    CreditPace pace;
    int credits = 0;
    const absl::StatusOr<bool> any = CreditInTurn(pace, streams, [&](Stream& stream) -> absl::StatusOr<bool> {
      if (credits++ == failing) return absl::InternalError("no credit");
      return stream.credits-- > 0;
    });
    EXPECT_EQ(any.status(), absl::InternalError("no credit"));
    EXPECT_EQ(credits, failing + 1);
  }
}

}  // namespace
}  // namespace weft
