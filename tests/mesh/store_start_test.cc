// Start-up over a store, with ranks that are threads: missing ranks, wrong arguments, keys that stay.
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mesh/bootstrap_conformance.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/store_bootstrap.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// A store in memory that tells its keys and can fail.
class MemoryStore final : public KeyValueStore {
 public:
  absl::Status Set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    values_[std::string(key)] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                      [&] { return values_.contains(std::string(key)); });
    if (!failure_.ok()) return failure_;
    const auto found = values_.find(std::string(key));
    if (found == values_.end()) return absl::DeadlineExceededError("no such key");
    return found->second;
  }
  absl::Status Delete(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    values_.erase(std::string(key));
    return absl::OkStatus();
  }

  void Fail(absl::Status failure) { failure_ = std::move(failure); }
  size_t size() const { return values_.size(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  absl::Status failure_;
};

StoreBootstrapOptions Rank(int rank, int size, absl::Duration timeout = absl::Seconds(60)) {
  StoreBootstrapOptions options;
  options.rank = rank;
  options.size = size;
  options.startup_timeout = timeout;
  options.timeout = absl::Seconds(60);
  return options;
}

// Runs `body` as every rank, each on its own thread.
void RunRanks(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

class StoreStart : public ::testing::TestWithParam<int> {};

TEST_P(StoreStart, RanksOfOneProcessPassTheConformanceTests) {
  const auto store = std::make_shared<MemoryStore>();
  RunRanks(GetParam(), [&](int rank) {
    const auto bootstrap = MakeStoreBootstrap(store, Rank(rank, GetParam()));
    ASSERT_OK(bootstrap);
    EXPECT_EQ((*bootstrap)->node_map().node_count(), 1);
    EXPECT_OK(weft::testing::GathersBlobsInRankOrder(**bootstrap));
    EXPECT_OK(weft::testing::AllRanksGetTheErrorOfTheLowestFailingRank(**bootstrap));
    EXPECT_OK(weft::testing::AFailingRankEndsTheExchangesOfItsPeers(**bootstrap));
    EXPECT_OK(weft::testing::AllRanksLearnThatTheyAreInDifferentExchanges(**bootstrap));
    EXPECT_OK(weft::testing::SharesMemoryWithinTheNode(**bootstrap));
    EXPECT_OK(weft::testing::RejectsReservationsAboveTheFreeMemory(**bootstrap));
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, StoreStart, ::testing::Values(1, 2, 3, 4, 7));

// Each rank keeps its generation, and its blobs of the last two rounds at most.
TEST(StoreStart, TheNumberOfKeysDoesNotGrowWithTheRounds) {
  constexpr int kRanks = 3;
  const auto store = std::make_shared<MemoryStore>();
  RunRanks(kRanks, [&](int rank) {
    const auto bootstrap = MakeStoreBootstrap(store, Rank(rank, kRanks));
    ASSERT_OK(bootstrap);
    for (int round = 0; round < 20; ++round) EXPECT_OK((*bootstrap)->AllGatherBlob("x", absl::Seconds(60)));
  });
  EXPECT_EQ(store->size(), 2 * kRanks);
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
                       AllOf(HasSubstr("start-up"), HasSubstr("ranks 0, 2, 3 did not arrive within 1ms"))));
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
    EXPECT_THAT(MakeStoreBootstrap(store, Rank(rank, rank + 2, absl::Milliseconds(500))).status().code(),
                rank == 0 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kDeadlineExceeded);
  });
}

TEST(StoreStart, PassesOnTheErrorOfTheStore) {
  const auto store = std::make_shared<MemoryStore>();
  store->Fail(absl::CancelledError("interrupted"));
  EXPECT_THAT(MakeStoreBootstrap(store, Rank(0, 1)),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("interrupted")));
}

TEST(StoreStart, ReadsTheVariablesOfTheLauncher) {
  for (const char* name : {"RANK", "WORLD_SIZE", "WEFT_NODE_ID", "WEFT_NETWORK"}) unsetenv(name);
  EXPECT_THAT(StoreBootstrapOptions::FromEnvironment(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("RANK is not set")));
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "many", 1);
  EXPECT_THAT(StoreBootstrapOptions::FromEnvironment(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("WORLD_SIZE is 'many'")));
  setenv("WORLD_SIZE", "4", 1);
  setenv("WEFT_NODE_ID", "left", 1);
  setenv("WEFT_NETWORK", "eth1", 1);
  setenv("WEFT_NUMA_NODE", "1x", 1);
  EXPECT_THAT(StoreBootstrapOptions::FromEnvironment(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("WEFT_NUMA_NODE is '1x'")));
  setenv("WEFT_NUMA_NODE", "1", 1);
  ASSERT_OK_AND_ASSIGN(const auto options, StoreBootstrapOptions::FromEnvironment());
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.size, 4);
  EXPECT_EQ(options.node_id, "left");
  EXPECT_EQ(options.network, "eth1");
  EXPECT_EQ(options.numa_node, 1);
  for (const char* name : {"RANK", "WORLD_SIZE", "WEFT_NODE_ID", "WEFT_NUMA_NODE", "WEFT_NETWORK"})
    unsetenv(name);
}

}  // namespace
}  // namespace weft
