// Growth of control messages with the ranks, on simulated ranks. bench/simulated_control measures more ranks.
#include <algorithm>
#include <bit>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "src/comm/trees/node_graph.h"
#include "tests/comm/support/engine_fixture.h"
#include "tests/support/schedule_count.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

int CeilLog2(int n) { return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1))); }

constexpr size_t kSegmentBytes = size_t{1} << 20;
constexpr int64_t kSecond = 1'000'000'000;

std::vector<NodeMap> Jobs() { return {NodeMap::RanksPerNode(256, 1), NodeMap::RanksPerNode(256, 16)}; }

absl::StatusOr<EngineFixture> MakeFixture(Bootstrap& bootstrap) {
  EngineOptions options;
  options.recorder_entries = 4;
  return EngineFixture::Make(bootstrap, options, kSegmentBytes);
}

// The control messages that `operation` sends on this rank.
template <typename Operation>
absl::StatusOr<int64_t> MessagesOf(EngineFixture& fixture, const Operation& operation) {
  const int64_t before = fixture.engine->counters().control_messages;
  Work work = operation();
  WEFT_RETURN_IF_ERROR(work.WaitReleased());
  return fixture.engine->counters().control_messages - before;
}

TEST(Scale, ABarrierAndASumSendOneMessageForEachLevelOfTheTree) {
  for (const NodeMap& nodes : Jobs()) {
    const int bound = CeilLog2(nodes.node_count()) + 1;
    const SimReport report = RunSimulatedRanks(nodes, {.seed = 1}, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap));
      CommEngine& engine = *fixture.engine;
      WEFT_ASSIGN_OR_RETURN(const int64_t barrier,
                            MessagesOf(fixture, [&] { return engine.Barrier(fixture.lane); }));
      EXPECT_LE(barrier, bound);
      int64_t value = bootstrap.rank();
      WEFT_ASSIGN_OR_RETURN(const int64_t sum, MessagesOf(fixture, [&] {
                              return engine.AllReduce(fixture.lane, &value, &value, DType::kI64, 1,
                                                      ReduceOp::kSum);
                            }));
      EXPECT_LE(sum, bound);
      EXPECT_EQ(value, nodes.size() * (nodes.size() - 1) / 2);
      EXPECT_LE(engine.counters().wire_peers, 2 * bound) << "peers";
      EXPECT_EQ(engine.counters().wire_bytes, 0) << "data messages";
      return absl::OkStatus();
    });
    EXPECT_OK(report.status());
  }
}

// See Note [Mirrored nodes]. Each level of the tree takes a message up and one down.
TEST(Scale, MirroredNodesWaitForEachLevelOfTheTree) {
  constexpr int kNodes = 16;
  constexpr int64_t kLatencyNs = 1'000'000;
  SimOptions machine;
  machine.jitter = 0;
  machine.mirror_nodes = true;
  machine.wire_latency_ns = kLatencyNs;
  const NodeMap nodes = NodeMap::RanksPerNode(2 * kNodes, 2);
  const SimReport report = RunSimulatedRanks(nodes, machine, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap));
    float value = 1;
    for (const bool sums : {false, true}) {
      const int64_t begin = bootstrap.runtime().NowNs();
      Work work =
          sums ? fixture.engine->AllReduce(fixture.lane, &value, &value, DType::kF32, 1, ReduceOp::kSum)
               : fixture.engine->Barrier(fixture.lane);
      WEFT_RETURN_IF_ERROR(work.WaitReleased());
      EXPECT_GE(bootstrap.runtime().NowNs() - begin, 2 * CeilLog2(kNodes) * kLatencyNs);
    }
    return absl::OkStatus();
  });
  EXPECT_OK(report.status());
}

TEST(Scale, AFailureReachesEveryRankWithLogarithmicallyManyMessages) {
  constexpr int kFailing = 5;
  for (const NodeMap& nodes : Jobs()) {
    for (const int dead : {0, 4, 128}) {
      SimOptions machine;
      machine.seed = static_cast<uint64_t>(dead);
      machine.death = {{dead, 20'000'000}};
      machine.poll_ns = 4'000;
      int informed = 0;
      const SimReport report = RunSimulatedRanks(nodes, machine, [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap));
        const int64_t before = fixture.engine->counters().control_messages;
        Work work;
        if (bootstrap.rank() == kFailing) {
          bootstrap.runtime().SleepFor(40'000'000);
          fixture.engine->Abort(absl::DataLossError("the disk is gone"));
        } else {
          work = fixture.engine->Barrier(fixture.lane);
          EXPECT_THAT(work.Wait(),
                      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 5: the disk is gone")));
        }
        EXPECT_LT(bootstrap.runtime().NowNs(), 300'000'000) << "rank " << bootstrap.rank();
        constexpr int kRanksOfANode = 3;
        const int levels = CeilLog2(nodes.node_count());
        EXPECT_LE(fixture.engine->counters().control_messages - before,
                  kRanksOfANode * 2 * levels + levels + 1);
        ++informed;
        return absl::OkStatus();
      });
      EXPECT_EQ(informed, nodes.size() - 1) << "rank " << dead << " is dead";
      EXPECT_TRUE(absl::IsUnavailable(report.outcomes[static_cast<size_t>(dead)]));
    }
  }
}

// See Note [Late ranks].
TEST(Scale, AMissedTimeoutNamesTheLateOrDeadRankWithLogarithmicallyManyMessages) {
  for (const NodeMap& nodes : {NodeMap::RanksPerNode(64, 1), NodeMap::RanksPerNode(64, 4)}) {
    for (const auto& [missing, dies] : {std::pair{0, false}, {45, false}, {63, true}}) {
      SCOPED_TRACE(::testing::Message() << nodes.node_count() << " nodes, rank " << missing);
      SimOptions machine;
      machine.poll_ns = 4'000;
      if (dies) machine.death = {{missing, kSecond / 10}};
      int named = 0;
      const SimReport report = RunSimulatedRanks(nodes, machine, [&](Bootstrap& bootstrap) -> absl::Status {
        EngineOptions options;
        options.recorder_entries = 4;
        options.timeout = absl::Milliseconds(200);
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options, kSegmentBytes));
        if (bootstrap.rank() == missing) {
          bootstrap.runtime().SleepFor(20 * kSecond);
          return absl::OkStatus();
        }
        const int64_t before = fixture.engine->counters().control_messages;
        Work work = fixture.engine->Barrier(fixture.lane);
        const std::string expected = absl::StrCat(dies ? "no heartbeat from rank(s) " : "; rank(s) ", missing,
                                                  dies ? ";" : " have not");
        const std::string message(work.Wait().message());
        EXPECT_THAT(message, HasSubstr(expected)) << "rank " << bootstrap.rank();
        // Questions and answers on each edge of the tree, and the news of the failure.
        const int levels = CeilLog2(nodes.node_count());
        EXPECT_LE(fixture.engine->counters().control_messages - before, 14 * levels + 16);
        ++named;
        return absl::OkStatus();
      });
      EXPECT_EQ(named, nodes.size() - 1);
    }
  }
}

// See Note [Messages].
TEST(Scale, LeavingSendsLogarithmicallyManyMessages) {
  for (const NodeMap& nodes : Jobs()) {
    const SimReport report = RunSimulatedRanks(nodes, {}, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap));
      return BootstrapBarrier(bootstrap);
    });
    EXPECT_OK(report.status());
    // Two signals, and one message for each lane, to a rank of each neighbor node.
    const int lanes = 1;
    EXPECT_LE(*std::max_element(report.control_messages.begin(), report.control_messages.end()),
              (2 + lanes) * 2 * CeilLog2(nodes.node_count()));
  }
}

// The last rank passes the announcements of others on to a rank of its node that has left, and reads nothing.
TEST(Scale, TheLastRankToLeaveDoesNotWaitForRanksThatHaveLeft) {
  for (const int nodes : {12, 40}) {
    const SimReport report =
        RunSimulatedRanks(NodeMap::RanksPerNode(nodes, 2), {}, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap));
          if (bootstrap.rank() + 1 < bootstrap.size()) return absl::OkStatus();
          bootstrap.runtime().SleepFor(kSecond / 10);
          const int64_t begin = bootstrap.runtime().NowNs();
          fixture.engine.reset();
          EXPECT_LT(bootstrap.runtime().NowNs() - begin, kSecond);  // The destructor tries for five seconds.
          return absl::OkStatus();
        });
    EXPECT_OK(report.status());
  }
}

// Rank 0 has left without a message, and its neighbors learn of it. Rank 19 is none of them.
TEST(Scale, AFirstMessageToARankThatHasLeftFailsLongBeforeItsDeadline) {
  const NodeMap nodes = NodeMap::RanksPerNode(40, 1);
  enum class Use : uint8_t { kSend, kReceive, kReceiveFromAny };
  for (const Use use : {Use::kSend, Use::kReceive, Use::kReceiveFromAny}) {
    const SimReport report = RunSimulatedRanks(nodes, {}, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap));
      if (bootstrap.rank() == 0) return absl::OkStatus();
      bootstrap.runtime().SleepFor(1'000'000'000);
      if (bootstrap.rank() == 19) {
        int value = 0;
        const int64_t begin = bootstrap.runtime().NowNs();
        const int source = use == Use::kReceive ? 0 : kAnySource;
        Work work = use == Use::kSend
                        ? fixture.engine->Send({0, 1}, &value, DType::kU8, sizeof(value))
                        : fixture.engine->Receive({source, 1}, &value, DType::kU8, sizeof(value));
        // A receive from any rank waits until all others have left.
        const int leaver = use == Use::kReceiveFromAny ? 39 : 0;
        EXPECT_THAT(work.Wait(),
                    StatusIs(absl::StatusCode::kAborted,
                             HasSubstr(absl::StrCat("rank ", leaver, " destroyed its engine before it "))));
        EXPECT_LT(bootstrap.runtime().NowNs() - begin, int64_t{60'000'000'000});  // The timeout is 600 s.
      }
      bootstrap.runtime().SleepFor(5'000'000'000);
      return absl::OkStatus();
    });
    EXPECT_OK(report.status());
  }
}

// A lane of the ranks of `groups` with this one.
absl::StatusOr<LaneId> AddLaneOf(EngineFixture& fixture, int rank,
                                 const std::vector<std::vector<int>>& groups) {
  const auto own = std::find_if(groups.begin(), groups.end(), [&](const std::vector<int>& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
  const auto member = std::find(own->begin(), own->end(), rank) - own->begin();
  return fixture.engine->AddLane(ProcessGroup{"part", *own, static_cast<int>(member)}, LanePurpose::kControl);
}

// The ranks between those of a group in the graph of all nodes have left.
TEST(Scale, AFailureReachesTheGroupAlthoughAllOthersHaveDestroyedTheirEngines) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(6, 1), {}, [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap));
        WEFT_ASSIGN_OR_RETURN(const LaneId lane,
                              AddLaneOf(fixture, bootstrap.rank(), {{0, 3}, {1, 2, 4, 5}}));
        if (bootstrap.rank() % 3 != 0) return absl::OkStatus();
        bootstrap.runtime().SleepFor(20'000'000);
        if (bootstrap.rank() == 0) {
          fixture.engine->Abort(absl::DataLossError("the disk is gone"));
          return absl::OkStatus();
        }
        Work work = fixture.engine->Barrier(lane);
        EXPECT_THAT(work.Wait(),
                    StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 0: the disk is gone")));
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
}

// The sums of this group and its barriers take different ways: see Note [Tree collectives].
TEST(Scale, ABarrierInsteadOfASumIsFoundOnEveryPlacement) {
  const std::vector<int> ranks = {0, 1, 4, 6, 7};
  const NodeMap cyclic{{0, 1, 2, 3, 0, 1, 2, 3}};
  for (const int deviant : ranks) {
    SCOPED_TRACE(deviant);
    const SimReport report = RunSimulatedRanks(cyclic, {}, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const LaneId lane, AddLaneOf(fixture, bootstrap.rank(), {ranks, {2, 3, 5}}));
      if (std::find(ranks.begin(), ranks.end(), bootstrap.rank()) == ranks.end())
        return BootstrapBarrier(bootstrap);
      std::vector<float> values(8, 1.0F);
      Work work = bootstrap.rank() == deviant ? fixture.engine->Barrier(lane)
                                              : fixture.engine->AllReduce(lane, values.data(), values.data(),
                                                                          DType::kF32, 8, ReduceOp::kSum);
      EXPECT_THAT(std::string(work.Wait().message()),
                  HasSubstr(absl::StrCat("rank ", deviant, " submitted ")));
      return BootstrapBarrier(bootstrap);
    });
    EXPECT_OK(report.status());
  }
}

// The nodes that `node` reaches without passing a silent one.
std::set<int> Reached(int node, int nodes, const std::set<int>& silent) {
  std::set<int> reached = {node};
  std::vector<int> pending = {node};
  while (!pending.empty()) {
    const int from = pending.back();
    pending.pop_back();
    for (const int to : NeighborNodes(from, nodes)) {
      if (!silent.contains(to) && reached.insert(to).second) pending.push_back(to);
    }
  }
  return reached;
}

TEST(NodeGraph, StaysConnectedWithoutAsManyNodesAsANodeHasNeighborsButOne) {
  std::mt19937 random(1);
  for (const int nodes : {2, 3, 5, 6, 7, 8, 12, 31, 64, 100}) {
    const std::set<int> neighbors = NeighborNodes(0, nodes);
    EXPECT_LE(static_cast<int>(neighbors.size()), 2 * CeilLog2(nodes));
    for (int trial = 0; trial < 200; ++trial) {
      // Every other trial silences neighbors of node 0, the others any nodes.
      std::set<int> silent;
      while (silent.size() + 1 < neighbors.size()) {
        const auto drawn = static_cast<int>(random() % static_cast<unsigned>(nodes));
        if (drawn != 0 && (trial % 2 == 0 || neighbors.contains(drawn))) silent.insert(drawn);
      }
      EXPECT_EQ(Reached(0, nodes, silent).size() + silent.size(), static_cast<size_t>(nodes));
    }
  }
}

TEST(NodeGraph, HasATreeOfAllNodes) {
  for (int nodes = 1; nodes <= 40; ++nodes) {
    int edges = 0;
    for (int node = 0; node < nodes; ++node) {
      for (const int child : TreeChildren(node, nodes)) {
        EXPECT_EQ(TreeParent(child), node);
        ++edges;
      }
    }
    EXPECT_EQ(edges, nodes - 1);
  }
}

}  // namespace
}  // namespace weft::testing
