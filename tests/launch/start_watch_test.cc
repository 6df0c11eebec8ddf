#include "src/launch/start_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::internal {
namespace {

using ::testing::StartsWith;

constexpr absl::Duration kLimit = absl::Seconds(9);
const absl::Duration kBefore = kLimit - absl::Milliseconds(1);

DaemonChildren Agents(std::vector<std::string> hosts) { return {{}, std::move(hosts)}; }
const DaemonChildren kOneRank = {{1234}, {}};

TEST(StartWatch, WaitsForEveryHost) {
  StartWatch watch(kLimit, /*ranks_are_local=*/false);
  for (const size_t connected : {0, 1}) {
    watch.Update(Agents({"a", "b"}), connected);
    EXPECT_TRUE(watch.is_waiting());
    EXPECT_FALSE(watch.Expired(kBefore));
    EXPECT_TRUE(watch.Expired(kLimit));
  }
  watch.Update(Agents({"a", "b"}), 2);
  EXPECT_TRUE(watch.started());
  EXPECT_FALSE(watch.is_waiting());
}

TEST(StartWatch, ForgetsItsDeadlineOnceRanksMayExist) {
  for (const DaemonChildren& started : {kOneRank, Agents({"a"}), Agents({})}) {
    StartWatch watch(kLimit, /*ranks_are_local=*/false);
    watch.Update(started, 1);
    watch.Update(Agents({"a"}), 0);  // A connection or a rank may end.
    EXPECT_TRUE(watch.started());
    EXPECT_FALSE(watch.Expired(absl::InfiniteDuration()));
  }
}

TEST(StartWatch, WaitsForRanksOfThisHostWithoutADeadline) {
  StartWatch watch(kLimit, /*ranks_are_local=*/true);
  watch.Update({}, 0);
  EXPECT_TRUE(watch.is_waiting());
  EXPECT_FALSE(watch.Expired(absl::InfiniteDuration()));
  watch.Update(kOneRank, 0);
  EXPECT_FALSE(watch.is_waiting());
}

// mpirun may reach hosts without a process of its own for each, or the system may hide connections.
TEST(StartWatch, HasNoDeadlineForHostsThatItCannotSee) {
  StartWatch watch(kLimit, /*ranks_are_local=*/false);
  const auto expect_no_deadline = [&] {
    EXPECT_FALSE(watch.started());
    EXPECT_FALSE(watch.is_waiting());
    EXPECT_FALSE(watch.Expired(absl::InfiniteDuration()));
  };
  watch.Update({}, 0);
  expect_no_deadline();
  watch.Update(Agents({"a"}), std::nullopt);
  expect_no_deadline();
}

TEST(StartWatch, HasNoDeadlineWithoutALimit) {
  StartWatch watch(absl::InfiniteDuration(), /*ranks_are_local=*/true);
  watch.Update({}, 0);
  EXPECT_FALSE(watch.Expired(absl::Hours(1'000'000)));
}

TEST(StartWatch, NamesTheHostsAndTheRemedy) {
  StartWatch watch(kLimit, /*ranks_are_local=*/false);
  watch.Update(Agents({"node2"}), 0);
  EXPECT_EQ(
      watch.Cause(),
      "node2 did not answer mpirun within 9s: check that ssh runs a command there without a password, and "
      "that programs there can connect to this host, or set a longer WEFT_STARTUP_TIMEOUT_S");
  watch.Update(Agents({"a", "b", "c"}), 1);
  EXPECT_THAT(watch.Cause(), StartsWith("2 of the hosts a, b, c did not answer mpirun within 9s: check"));
}

}  // namespace
}  // namespace weft::internal
