// Collectives keep links of any speed busy, also if no thread waits for them. Times are virtual.
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/support/link_share.h"

namespace weft::testing {
namespace {

LinkExperiment Overlapped(LinkOp op, double gigabits, int64_t latency_ns, int ranks_of_node = 1) {
  LinkExperiment experiment;
  experiment.op = op;
  experiment.gigabits = gigabits;
  experiment.latency_ns = latency_ns;
  experiment.ranks_of_node = ranks_of_node;
  return experiment;
}

double ShareOf(const LinkExperiment& experiment) { return UseOfLink(experiment).share; }

TEST(FastLinks, AreKeptBusyByCollectivesThatNoThreadWaitsFor) {
  for (const LinkOp op : {LinkOp::kAllGather, LinkOp::kReduceScatter, LinkOp::kAllReduce, LinkOp::kAllToAll,
                          LinkOp::kStridedAllToAll}) {
    EXPECT_GE(ShareOf(Overlapped(op, 1, 2'000'000)), 0.95) << static_cast<int>(op);
    EXPECT_GE(ShareOf(Overlapped(op, 100, 500'000)), 0.9) << static_cast<int>(op);
  }
}

// True if two of three schedules reach `share`, as a poll may come early or late. The third runs if the first
// two differ.
::testing::AssertionResult MostReach(double share, LinkExperiment experiment) {
  int reached = 0;
  std::vector<double> missed;
  while (reached < 2 && missed.size() < 2) {
    const double found = ShareOf(experiment);
    if (found >= share) {
      ++reached;
    } else {
      missed.push_back(found);
    }
    ++experiment.seed;
  }
  if (reached == 2) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "two schedules reach only " << ::testing::PrintToString(missed) << " of the link, not " << share;
}

// Each rank of a node brings a part of the bytes. See Note [Poll intervals].
TEST(FastLinks, AreKeptBusyByFourRanksOfANode) {
  EXPECT_TRUE(MostReach(0.9, Overlapped(LinkOp::kAllGather, 400, 5'000, 4)));
  EXPECT_TRUE(MostReach(0.9, Overlapped(LinkOp::kReduceScatter, 400, 5'000, 4)));
  EXPECT_TRUE(MostReach(0.9, Overlapped(LinkOp::kAllGather, 100, 500'000, 4)));
  EXPECT_TRUE(MostReach(0.9, Overlapped(LinkOp::kStridedAllToAll, 100, 500'000, 4)));
}

// The root of a broadcast measures no rate of bytes that arrive. See Note [Poll intervals].
TEST(FastLinks, AreKeptBusyByARankThatOnlySends) {
  EXPECT_TRUE(MostReach(0.93, Overlapped(LinkOp::kBroadcast, 400, 5'000)));
}

// A thread that polls after each slice that it unpacks reaches 0.8. See Note [Runs of slices].
TEST(FastLinks, AreKeptBusyByAWaitingThreadThatUnpacksSlices) {
  LinkExperiment waited = Overlapped(LinkOp::kStridedAllToAll, 400, 5'000);
  waited.waited = true;
  EXPECT_GE(ShareOf(waited), 0.9);
}

// See Note [Paced credits]. If the credits of a whole window were given at once, these shares would be 0.73
// to 0.87.
TEST(FastLinks, AreKeptBusyByStreamsOfSeveralNodes) {
  LinkExperiment several = Overlapped(LinkOp::kAllGather, 400, 5'000);
  several.nodes = 4;
  EXPECT_TRUE(MostReach(0.9, several));
  several.waited = true;
  for (const LinkOp op : {LinkOp::kAllGather, LinkOp::kReduceScatter, LinkOp::kAllToAll}) {
    several.op = op;
    EXPECT_GE(ShareOf(several), 0.95) << static_cast<int>(op);
  }
}

// Each rank receives from one node.
TEST(FastLinks, AreKeptBusyByOneSenderOfManyNodes) {
  LinkExperiment waited = Overlapped(LinkOp::kSendReceive, 400, 50'000);
  waited.nodes = 8;
  waited.waited = true;
  EXPECT_GE(ShareOf(waited), 0.9);
}

// Ranks of a node reduce together. Their partial sums cross the link from scratch slots.
TEST(FastLinks, AreKeptBusyByPartialSums) {
  for (const LinkOp op : {LinkOp::kReduceScatter, LinkOp::kAllReduce}) {
    EXPECT_GE(ShareOf(Overlapped(op, 100, 500'000, 2)), 0.87) << static_cast<int>(op);
    EXPECT_GE(ShareOf(Overlapped(op, 400, 5'000, 2)), 0.87) << static_cast<int>(op);
  }
}

// Beside the buffers there is memory for a part of the budget: rings and slots are smaller, and nothing
// fails.
TEST(FastLinks, AreSharedByTheSlicesForWhichThereIsMemory) {
  LinkExperiment scarce = Overlapped(LinkOp::kStridedAllToAll, 100, 500'000);
  scarce.scratch_bytes = size_t{4} << 20;
  const double share = ShareOf(scarce);
  EXPECT_GE(share, 0.02);
  EXPECT_LE(share, 0.8);
}

TEST(FastLinks, CarryRunsOfSlices) {
  for (const LinkOp op : {LinkOp::kAllGather, LinkOp::kReduceScatter, LinkOp::kAllReduce}) {
    const LinkUse slow = UseOfLink(Overlapped(op, 10, 20'000));
    EXPECT_GE(slow.share, 0.95) << static_cast<int>(op);
    EXPECT_LE(slow.slices_of_message, 1) << static_cast<int>(op);
    const LinkUse fast = UseOfLink(Overlapped(op, 400, 5'000));
    EXPECT_GE(fast.share, 0.85) << static_cast<int>(op);
    EXPECT_GE(fast.slices_of_message, 3) << static_cast<int>(op);
  }
}

}  // namespace
}  // namespace weft::testing
