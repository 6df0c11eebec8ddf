// Start-up over a store, with ranks that are threads: missing ranks, wrong arguments, keys that stay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mesh/support/bootstrap_conformance.h"
#include "tests/mesh/support/memory_store.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "weft/mesh/store_bootstrap.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::weft::testing::kTestTimeout;
using ::weft::testing::MemoryStore;
using ::weft::testing::RunRanks;
using ::weft::testing::ScopedVariable;
using ::weft::testing::StatusIs;

StoreBootstrapOptions Rank(int rank, int size, absl::Duration timeout = kTestTimeout) {
  StoreBootstrapOptions options;
  options.rank = rank;
  options.size = size;
  options.startup_timeout = timeout;
  options.timeout = kTestTimeout;
  return options;
}

class StoreStart : public ::testing::TestWithParam<int> {};

TEST_P(StoreStart, RanksOfOneProcessPassTheConformanceTests) {
  const auto store = std::make_shared<MemoryStore>();
  RunRanks(GetParam(), [&](int rank) {
    const auto bootstrap = MakeStoreBootstrap(store, Rank(rank, GetParam()));
    ASSERT_OK(bootstrap);
    EXPECT_EQ((*bootstrap)->node_map().node_count(), 1);
    for (const auto& test : weft::testing::BootstrapConformance()) {
      SCOPED_TRACE(test.name);
      EXPECT_OK(test.body(**bootstrap));
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, StoreStart, ::testing::Values(1, 2, 3, 4, 7));

// Each rank keeps its generation and its blob of the last round. In a tree, ranks 0 and 1 also keep subtrees.
TEST(StoreStart, TheNumberOfKeysDoesNotGrowWithTheRounds) {
  for (const int ranks : {3, 10}) {
    const auto store = std::make_shared<MemoryStore>();
    RunRanks(ranks, [&](int rank) {
      const auto bootstrap = MakeStoreBootstrap(store, Rank(rank, ranks));
      ASSERT_OK(bootstrap);
      for (int round = 0; round < 20; ++round) EXPECT_OK((*bootstrap)->AllGatherBlob("x", kTestTimeout));
    });
    EXPECT_EQ(store->size(), 2 * ranks + (ranks == 10 ? 2 : 0));
  }
}

TEST(StoreStart, NodesFollowTheNamesThatTheirRanksGive) {
  const auto store = std::make_shared<MemoryStore>();
  const std::vector<std::string> names = {"b", "a", "b", "c", "a"};
  RunRanks(5, [&](int rank) {
    StoreBootstrapOptions options = Rank(rank, 5);
    options.node_id = names[static_cast<size_t>(rank)];
    const auto bootstrap = MakeStoreBootstrap(store, options);
    ASSERT_OK(bootstrap);
    EXPECT_THAT((*bootstrap)->node_map().node_of_rank, ::testing::ElementsAre(0, 1, 0, 2, 1));
    EXPECT_OK(weft::testing::SharesMemoryWithinTheNode(**bootstrap));
  });
}

TEST(StoreStart, EveryRankLearnsTheNumaNodesOfAll) {
  const auto store = std::make_shared<MemoryStore>();
  RunRanks(3, [&](int rank) {
    StoreBootstrapOptions options = Rank(rank, 3);
    options.numa_node = 2 - rank;
    const auto bootstrap = MakeStoreBootstrap(store, options);
    ASSERT_OK(bootstrap);
    EXPECT_THAT((*bootstrap)->node_map().numa_of_rank, ::testing::ElementsAre(2, 1, 0));
  });
}

TEST(StoreStart, NamesTheRanksThatNeverCome) {
  EXPECT_THAT(MakeStoreBootstrap(std::make_shared<MemoryStore>(), Rank(1, 4, absl::Milliseconds(1))),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       StartsWith("start-up: all-gather of blobs: ranks 0, 2, 3 did not arrive within 1ms")));
}

TEST(StoreStart, NamesKeysOfAnEarlierRunOnEveryRank) {
  const auto store = std::make_shared<MemoryStore>();
  const auto is_named = StatusIs(absl::StatusCode::kDeadlineExceeded,
                                 HasSubstr("keys of an earlier run: give each job an empty store"));
  for (int run = 0; run < 2; ++run) {  // Rank 1 has missed the first one.
    EXPECT_THAT(MakeStoreBootstrap(store, Rank(0, 2, absl::Milliseconds(1))), is_named);
  }
  const auto late = MakeStoreBootstrap(store, Rank(1, 2));
  ASSERT_OK(late);
  EXPECT_THAT((*late)->AllGatherBlob("x", absl::Milliseconds(1)), is_named);
}

TEST(StoreStart, RefusesRanksOutOfRange) {
  const auto store = std::make_shared<MemoryStore>();
  EXPECT_THAT(MakeStoreBootstrap(store, Rank(2, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 2 is outside [0, 2)")));
  EXPECT_THAT(MakeStoreBootstrap(store, Rank(-1, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
  EXPECT_THAT(MakeStoreBootstrap(store, Rank(0, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 ranks")));
}

TEST(StoreStart, RefusesRanksThatDisagreeAboutTheSize) {
  const auto store = std::make_shared<MemoryStore>();
  RunRanks(2, [&](int rank) {
    const absl::Duration timeout = rank == 0 ? kTestTimeout : absl::Milliseconds(1);  // Rank 2 never comes.
    EXPECT_THAT(MakeStoreBootstrap(store, Rank(rank, rank + 2, timeout)).status().code(),
                rank == 0 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kDeadlineExceeded);
  });
}

TEST(StoreStart, AnInvalidOptionOfOneRankIsAnErrorOnEveryRank) {
  const auto store = std::make_shared<MemoryStore>();
  RunRanks(3, [&](int rank) {
    StoreBootstrapOptions options = Rank(rank, 3);
    if (rank == 1) options.error = absl::InvalidArgumentError("WEFT_TIMEOUT_S is 'soon'");
    EXPECT_THAT(
        MakeStoreBootstrap(store, options),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(rank == 1 ? "start-up: WEFT" : "start-up: rank 1: WEFT_TIMEOUT_S is 'soon'")));
  });
}

TEST(StoreStart, PassesOnTheErrorOfTheStore) {
  const auto store = std::make_shared<MemoryStore>();
  store->Fail(absl::CancelledError("interrupted"));
  EXPECT_THAT(MakeStoreBootstrap(store, Rank(0, 1)),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("interrupted")));
}

TEST(StoreStart, ReadsTheVariablesOfTheLauncher) {
  const ScopedVariable no_rank("RANK", nullptr);
  EXPECT_THAT(StoreBootstrapOptions::FromEnvironment(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("RANK is not set")));
  const ScopedVariable rank("RANK", "3");
  const ScopedVariable wrong_size("WORLD_SIZE", "many");
  EXPECT_THAT(StoreBootstrapOptions::FromEnvironment(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("WORLD_SIZE is 'many'")));
  const ScopedVariable size("WORLD_SIZE", "4");
  const ScopedVariable node("WEFT_NODE_ID", "left");
  const ScopedVariable network("WEFT_NETWORK", "eth1");
  const ScopedVariable wrong_numa("WEFT_NUMA_NODE", "1x");
  ASSERT_OK_AND_ASSIGN(const auto invalid, StoreBootstrapOptions::FromEnvironment());
  EXPECT_THAT(invalid.error,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("WEFT_NUMA_NODE is '1x'")));
  const ScopedVariable numa("WEFT_NUMA_NODE", "0");
  ASSERT_OK_AND_ASSIGN(const auto options, StoreBootstrapOptions::FromEnvironment());
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.size, 4);
  EXPECT_EQ(options.node_id, "left");
  EXPECT_EQ(options.network, "eth1");
  EXPECT_EQ(options.numa_node, 0);
}

}  // namespace
}  // namespace weft
