// Exact values of the engine's counters, against formulas.
#include <algorithm>
#include <cstring>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "weft/memory/shared_block.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

constexpr int64_t kPart = 1000;  // Elements.
constexpr int64_t kPartBytes = kPart * 4;

// Bytes that an operation adds to the counters of each rank.
struct Bytes {
  std::vector<int64_t> wire;  // By rank.
  int64_t logical = 0;
  int64_t copied = 0;
  int64_t cross_domain = 0;
};

EngineOptions CountedSlices() {
  EngineOptions options;
  options.timeout = kTestTimeout;
  options.slice_bytes = 512;
  return options;
}

using Operation = std::function<Work(EngineFixture&, TestBuffer& input, TestBuffer& output)>;

void Expect(const NodeMap& nodes, LanePurpose purpose, bool in_node_memory, const Operation& operation,
            int64_t EngineCounters::*logical, const Bytes& expected,
            const EngineOptions& options = CountedSlices()) {
  RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
    WEFT_ASSIGN_OR_RETURN(fixture.lane, fixture.engine->AddLane(WorldGroup(bootstrap), purpose));
    const int64_t elements = kPart * bootstrap.size();
    WEFT_ASSIGN_OR_RETURN(TestBuffer input,
                          TestBuffer::Make(*fixture.pool, in_node_memory, DType::kF32, elements));
    WEFT_ASSIGN_OR_RETURN(TestBuffer output,
                          TestBuffer::Make(*fixture.pool, in_node_memory, DType::kF32, elements));
    Work work = operation(fixture, input, output);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    const EngineCounters counters = fixture.engine->counters();
    EXPECT_EQ(counters.*logical, expected.logical);
    EXPECT_EQ(counters.all_gather_bytes + counters.reduce_scatter_bytes + counters.all_reduce_bytes +
                  counters.context_bytes + counters.control_bytes + counters.optimizer_bytes,
              expected.logical);
    EXPECT_EQ(counters.wire_bytes, expected.wire[static_cast<size_t>(bootstrap.rank())]);
    EXPECT_EQ(counters.copied_bytes, expected.copied);
    EXPECT_EQ(counters.cross_domain_bytes, expected.cross_domain);
    EXPECT_EQ(counters.operations, 1);
    return absl::OkStatus();
  });
}

Work AllGather(EngineFixture& f, TestBuffer& input, TestBuffer& output) {
  return f.engine->AllGather(f.lane, input.data(), output.data(), DType::kF32,
                             kPart * f.engine->group(f.lane).size());
}
// All ranks of a share domain gather into the output of their first rank. Ranks are threads or fibers, so
// they can exchange pointers.
Work AllGatherShared(EngineFixture& f, TestBuffer& input, TestBuffer& output) {
  Bootstrap& bootstrap = f.engine->bootstrap();
  std::byte* own = output.data();
  const auto outputs =
      bootstrap.AllGatherBlob({reinterpret_cast<const char*>(&own), sizeof(own)}, kTestTimeout);
  std::byte* shared = nullptr;
  const auto first = static_cast<size_t>(RanksOfThisDomain(*f.engine).ranks.front());
  std::memcpy(&shared, (*outputs)[first].data(), sizeof(shared));
  return f.engine->AllGatherShared(f.lane, input.data(), shared, DType::kF32,
                                   kPart * f.engine->group(f.lane).size());
}
Work ReduceScatter(EngineFixture& f, TestBuffer& input, TestBuffer& output) {
  return f.engine->ReduceScatter(f.lane, input.data(), output.data(), DType::kF32,
                                 kPart * f.engine->group(f.lane).size(), ReduceOp::kSum);
}
// Elements of each rank's part: a whole number of cache lines, so that the parts are equal.
constexpr int64_t kRange = 992;
Work AllReduce(EngineFixture& f, TestBuffer& input, TestBuffer& output) {
  return f.engine->AllReduce(f.lane, input.data(), output.data(), DType::kF32,
                             kRange * f.engine->group(f.lane).size(), ReduceOp::kSum);
}
Work AllToAll(EngineFixture& f, TestBuffer& input, TestBuffer& output) {
  const std::vector<int64_t> counts(static_cast<size_t>(f.engine->group(f.lane).size()), kPart);
  return f.engine->AllToAll(f.lane, input.data(), counts, output.data(), counts, DType::kF32);
}

const NodeMap kOneNode = NodeMap::OneNode(4);
const NodeMap kTwoNodes = NodeMap::RanksPerNode(4, 2);
const NodeMap kFourNodes = NodeMap::RanksPerNode(4, 1);
const NodeMap kTwoAndOne = NodeMap::RanksPerNode(3, 2);

constexpr auto kAG = &EngineCounters::all_gather_bytes;
constexpr auto kRS = &EngineCounters::reduce_scatter_bytes;
constexpr auto kAR = &EngineCounters::all_reduce_bytes;
constexpr auto kCP = &EngineCounters::context_bytes;

TEST(Counters, AllGatherSendsEveryPartOnceToEveryOtherNode) {
  const int64_t b = kPartBytes;
  const auto purpose = LanePurpose::kAllGather;
  Expect(kOneNode, purpose, true, AllGather, kAG, {{0, 0, 0, 0}, 3 * b, 0});
  Expect(kTwoNodes, purpose, true, AllGather, kAG, {{b, b, b, b}, 3 * b, 0});
  Expect(kFourNodes, purpose, true, AllGather, kAG, {{3 * b, 3 * b, 3 * b, 3 * b}, 3 * b, 0});
  Expect(kTwoAndOne, purpose, true, AllGather, kAG, {{b, b, b}, 2 * b, 0});
}

TEST(Counters, AllGatherSharedSendsTheSameBytesAndStagesNothing) {
  const int64_t b = kPartBytes;
  const auto purpose = LanePurpose::kAllGather;
  Expect(kOneNode, purpose, true, AllGatherShared, kAG, {{0, 0, 0, 0}, 3 * b, 0});
  Expect(kTwoNodes, purpose, true, AllGatherShared, kAG, {{b, b, b, b}, 3 * b, 0});
  Expect(kFourNodes, purpose, false, AllGatherShared, kAG, {{3 * b, 3 * b, 3 * b, 3 * b}, 3 * b, 0});
  Expect(kTwoAndOne, purpose, true, AllGatherShared, kAG, {{b, b, b}, 2 * b, 0});
}

// Two share domains of two ranks on each node.
NodeMap TwoDomains(NodeMap nodes) {
  for (int rank = 0; rank < nodes.size(); ++rank) nodes.numa_of_rank.push_back(rank / 2 % 2);
  return nodes;
}

TEST(Counters, EveryPartCrossesBetweenDomainsOnceForEachThatSharesAnImage) {
  const int64_t b = kPartBytes;
  const auto purpose = LanePurpose::kAllGather;
  const NodeMap one_node = TwoDomains(NodeMap::OneNode(4));
  const NodeMap two_nodes = TwoDomains(NodeMap::RanksPerNode(8, 4));
  const std::vector<int64_t> wire(8, b);
  Expect(one_node, purpose, true, AllGatherShared, kAG, {{0, 0, 0, 0}, 3 * b, 0, b});
  Expect(one_node, purpose, true, AllGather, kAG, {{0, 0, 0, 0}, 3 * b, 0, 2 * b});
  // Two parts of each node lie in the other domain, and its four ranks copy one each.
  Expect(two_nodes, purpose, true, AllGatherShared, kAG, {wire, 7 * b, 0, 2 * b});
  Expect(two_nodes, purpose, true, AllGather, kAG, {wire, 7 * b, 0, 4 * b});
  EngineOptions by_node = CountedSlices();
  by_node.share_domain = ShareDomain::kNode;
  Expect(two_nodes, purpose, true, AllGatherShared, kAG, {wire, 7 * b}, by_node);
}

// A rank reads one sum of the other domain for each part that it reduces: its own, and between nodes that of
// a rank of the other node. Without sums of domains, it would read two inputs.
TEST(Counters, ReductionsReadOneSumOfEachOtherDomain) {
  const int64_t b = kPartBytes;
  const int64_t r = kRange * 4;
  const NodeMap one_node = TwoDomains(NodeMap::OneNode(4));
  const NodeMap two_nodes = TwoDomains(NodeMap::RanksPerNode(8, 4));
  const auto scatter = LanePurpose::kReduceScatter;
  const auto reduce = LanePurpose::kAllReduce;
  Expect(one_node, scatter, true, ReduceScatter, kRS, {{0, 0, 0, 0}, 3 * b, 0, b});
  Expect(two_nodes, scatter, true, ReduceScatter, kRS, {std::vector<int64_t>(8, b), 7 * b, 0, 2 * b});
  // A reduced part is also written to the outputs of two ranks of the other domain. These copy two of the
  // parts that arrive from the other node.
  Expect(one_node, reduce, true, AllReduce, kAR, {{0, 0, 0, 0}, 6 * r, 0, r + 2 * r});
  Expect(two_nodes, reduce, true, AllReduce, kAR,
         {std::vector<int64_t>(8, 2 * r), 14 * r, 0, 2 * r + 2 * r + 2 * r});
}

// Each rank copies one part over a slow link into a shared image, and two into an image of its own.
TEST(Counters, AGatherForEachDomainTakesHalfTheTimeOfTheLinkBetweenDomains) {
  const NodeMap nodes = TwoDomains(NodeMap::OneNode(4));
  const SimOptions machine{.jitter = 0, .cross_domain_speed = 0.001};
  const auto time_of = [&](const Operation& gather) {
    const SimReport report = RunSimulatedRanks(nodes, machine, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, CountedSlices()));
      WEFT_ASSIGN_OR_RETURN(TestBuffer input, TestBuffer::Make(*fixture.pool, true, DType::kF32, 4 * kPart));
      WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, true, DType::kF32, 4 * kPart));
      return gather(fixture, input, output).WaitReleased();
    });
    EXPECT_OK(report.status());
    return static_cast<double>(report.virtual_ns);
  };
  EXPECT_NEAR(time_of(AllGather) / time_of(AllGatherShared), 2, 0.1);
}

TEST(Counters, ReduceScatterSendsOnePartialOfEveryNodeToEveryOwnerElsewhere) {
  const int64_t b = kPartBytes;
  const auto purpose = LanePurpose::kReduceScatter;
  Expect(kOneNode, purpose, true, ReduceScatter, kRS, {{0, 0, 0, 0}, 3 * b, 0});
  Expect(kTwoNodes, purpose, true, ReduceScatter, kRS, {{b, b, b, b}, 3 * b, 0});
  Expect(kFourNodes, purpose, true, ReduceScatter, kRS, {{3 * b, 3 * b, 3 * b, 3 * b}, 3 * b, 0});
  // On the first node, the leader for rank 2's part is rank 0. Rank 2 sends its input to both owners on that
  // node.
  Expect(kTwoAndOne, purpose, true, ReduceScatter, kRS, {{b, 0, 2 * b}, 2 * b, 0});
}

TEST(Counters, ReduceScatterOverInterleavedNodesSendsEveryInputUnreduced) {
  const int64_t b = kPartBytes;
  Expect(NodeMap{{0, 1, 0, 1}}, LanePurpose::kReduceScatter, true, ReduceScatter, kRS,
         {{2 * b, 2 * b, 2 * b, 2 * b}, 3 * b, 0});
}

TEST(Counters, AllReduceIsAReduceScatterAndAnAllGather) {
  const int64_t b = kRange * 4;
  const auto purpose = LanePurpose::kAllReduce;
  Expect(kOneNode, purpose, true, AllReduce, kAR, {{0, 0, 0, 0}, 6 * b, 0});
  Expect(kTwoNodes, purpose, true, AllReduce, kAR, {{2 * b, 2 * b, 2 * b, 2 * b}, 6 * b, 0});
  Expect(kFourNodes, purpose, true, AllReduce, kAR, {{6 * b, 6 * b, 6 * b, 6 * b}, 6 * b, 0});
  Expect(kTwoAndOne, purpose, true, AllReduce, kAR, {{2 * b, b, 3 * b}, 4 * b, 0});
}

TEST(Counters, AllToAllSendsOnlyThePartsForOtherNodes) {
  const int64_t b = kPartBytes;
  const auto purpose = LanePurpose::kContext;
  Expect(kOneNode, purpose, true, AllToAll, kCP, {{0, 0, 0, 0}, 3 * b, 0});
  Expect(kTwoNodes, purpose, true, AllToAll, kCP, {{2 * b, 2 * b, 2 * b, 2 * b}, 3 * b, 0});
  Expect(kFourNodes, purpose, true, AllToAll, kCP, {{3 * b, 3 * b, 3 * b, 3 * b}, 3 * b, 0});
}

TEST(Counters, MemoryThatPeersCannotReadIsCopied) {
  const int64_t b = kPartBytes;
  const int64_t r = kRange * 4;
  // Within a node, peers access only inputs, and the outputs that several ranks write.
  Expect(kOneNode, LanePurpose::kAllGather, false, AllGather, kAG, {{0, 0, 0, 0}, 3 * b, b});
  Expect(kOneNode, LanePurpose::kReduceScatter, false, ReduceScatter, kRS, {{0, 0, 0, 0}, 3 * b, 4 * b});
  Expect(kOneNode, LanePurpose::kAllReduce, false, AllReduce, kAR, {{0, 0, 0, 0}, 6 * r, 8 * r});
  Expect(kOneNode, LanePurpose::kContext, false, AllToAll, kCP, {{0, 0, 0, 0}, 3 * b, 3 * b});
  // Peers also read the outputs into which leaders receive remote parts.
  Expect(kTwoNodes, LanePurpose::kAllGather, false, AllGather, kAG, {{b, b, b, b}, 3 * b, 5 * b});
  // A rank without local peers copies nothing.
  Expect(kFourNodes, LanePurpose::kAllGather, false, AllGather, kAG,
         {{3 * b, 3 * b, 3 * b, 3 * b}, 3 * b, 0});
  Expect(kFourNodes, LanePurpose::kAllReduce, false, AllReduce, kAR,
         {{6 * r, 6 * r, 6 * r, 6 * r}, 6 * r, 0});
}

TEST(Counters, PartsOfManyPiecesAreCopiedOnlyForPeers) {
  const int64_t b = kPartBytes;
  const int64_t r = kRange * 4;
  EngineOptions options = CountedSlices();
  options.piece_bytes = 256;
  Expect(kOneNode, LanePurpose::kAllGather, false, AllGather, kAG, {{0, 0, 0, 0}, 3 * b, b}, options);
  Expect(kOneNode, LanePurpose::kReduceScatter, false, ReduceScatter, kRS, {{0, 0, 0, 0}, 3 * b, 3 * b},
         options);
  // The parts that peers reduce, and the reduced part.
  Expect(kOneNode, LanePurpose::kAllReduce, false, AllReduce, kAR, {{0, 0, 0, 0}, 6 * r, 4 * r}, options);
  Expect(kOneNode, LanePurpose::kReduceScatter, true, ReduceScatter, kRS, {{0, 0, 0, 0}, 3 * b, 0}, options);
}

// Sends and receives every second element.
Work SparseAllToAll(EngineFixture& f, TestBuffer& input, TestBuffer& output) {
  std::vector<TensorView> sends, receives;
  for (int64_t rank = 0; rank < f.engine->group(f.lane).size(); ++rank) {
    sends.push_back({input.At(rank * kPart), DType::kF32, {kPart / 2}, {2}});
    receives.push_back({output.At(rank * kPart), DType::kF32, {kPart / 2}, {2}});
  }
  return f.engine->AllToAll(f.lane, sends, receives, DType::kF32);
}

TEST(Counters, StridedPartsArePackedOnlyForTheWire) {
  const int64_t b = kPartBytes / 2;
  const auto purpose = LanePurpose::kContext;
  Expect(kOneNode, purpose, true, SparseAllToAll, kCP, {{0, 0, 0, 0}, 3 * b, 0});
  // Each sent part is packed, and each received part is unpacked.
  Expect(kTwoNodes, purpose, true, SparseAllToAll, kCP, {{2 * b, 2 * b, 2 * b, 2 * b}, 3 * b, 2 * 2 * b});
  // Parts for local peers are packed if they lie outside node memory.
  Expect(kOneNode, purpose, false, SparseAllToAll, kCP, {{0, 0, 0, 0}, 3 * b, 3 * b});
}

TEST(Counters, SendReceiveBringsOnePart) {
  const auto shift = [](EngineFixture& f, TestBuffer& input, TestBuffer& output) {
    const ProcessGroup& group = f.engine->group(f.lane);
    const int to = (group.group_rank + 1) % group.size();
    const int from = (group.group_rank + group.size() - 1) % group.size();
    return f.engine->SendReceive(f.lane, TensorView::Contiguous(input.data(), DType::kF32, {kPart}), to,
                                 TensorView::Contiguous(output.data(), DType::kF32, {kPart}), from);
  };
  const int64_t b = kPartBytes;
  Expect(kOneNode, LanePurpose::kContext, true, shift, kCP, {{0, 0, 0, 0}, b, 0});
  Expect(kTwoNodes, LanePurpose::kContext, true, shift, kCP, {{0, b, 0, b}, b, 0});
}

TEST(Counters, PartialsOfF16TravelInF32) {
  const auto reduce = [](EngineFixture& f, TestBuffer& input, TestBuffer& output) {
    return f.engine->ReduceScatter(f.lane, input.data(), output.data(), DType::kF16, 4 * kPart,
                                   ReduceOp::kSum);
  };
  const int64_t b = kPart * 2;
  Expect(kTwoNodes, LanePurpose::kReduceScatter, true, reduce, kRS, {{2 * b, 2 * b, 2 * b, 2 * b}, 3 * b, 0});
  const auto narrow = [](EngineFixture& f, TestBuffer& input, TestBuffer& output) {
    return f.engine->ReduceScatter(f.lane, input.data(), output.data(), DType::kBF16, 4 * kPart,
                                   ReduceOp::kSum);
  };
  Expect(kTwoNodes, LanePurpose::kReduceScatter, true, narrow, kRS, {{b, b, b, b}, 3 * b, 0});
}

TEST(Counters, BroadcastBringsTheWholeToAllButTheRoot) {
  RunRanks(kTwoNodes, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, CountedSlices()));
    WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kF32, kPart));
    Work work = fixture.engine->Broadcast(fixture.lane, buffer.data(), DType::kF32, kPart, /*root=*/1);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    const bool root = bootstrap.rank() == 1;
    EXPECT_EQ(fixture.engine->counters().all_gather_bytes, root ? 0 : kPartBytes);
    EXPECT_EQ(fixture.engine->counters().wire_bytes, root ? kPartBytes : 0);
    return absl::OkStatus();
  });
}

TEST(Counters, BarrierSendsControlMessagesOnly) {
  RunRanks(kFourNodes, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, CountedSlices()));
    WEFT_ASSIGN_OR_RETURN(const LaneId lane,
                          fixture.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kControl));
    Work work = fixture.engine->Barrier(lane);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    EXPECT_EQ(fixture.engine->counters().control_bytes, 0);
    EXPECT_EQ(fixture.engine->counters().wire_bytes, 0);
    // Nodes 1 and 2 are children of node 0, node 3 is one of node 2.
    EXPECT_EQ(fixture.engine->counters().control_messages,
              bootstrap.rank() == 0 || bootstrap.rank() == 2 ? 2 : 1);
    EXPECT_EQ(fixture.engine->counters().copied_bytes, 0);
    return absl::OkStatus();
  });
}

// A shared block lies in one rank's segment. The inputs of an all-gather, an all-reduce and a send-receive
// are in it.
TEST(Counters, SharedBlocksAreReadInPlace) {
  RunRanks(kOneNode, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, CountedSlices()));
    const int ranks = bootstrap.size();
    const std::vector<SharedBlockRequest> requests = {
        {bootstrap.node_map().RanksOf(0), static_cast<size_t>(kPartBytes * ranks)}};
    WEFT_ASSIGN_OR_RETURN(const auto blocks, ShareBlocks(bootstrap, *fixture.heap, requests, kTestTimeout));
    auto* own = reinterpret_cast<float*>(blocks[0].data()) + bootstrap.rank() * kPart;
    std::fill_n(own, kPart, static_cast<float>(bootstrap.rank() + 1));
    WEFT_ASSIGN_OR_RETURN(TestBuffer gathered,
                          TestBuffer::Make(*fixture.pool, true, DType::kF32, kPart * ranks));
    WEFT_ASSIGN_OR_RETURN(TestBuffer sum, TestBuffer::Make(*fixture.pool, true, DType::kF32, kPart));
    WEFT_ASSIGN_OR_RETURN(TestBuffer shifted, TestBuffer::Make(*fixture.pool, true, DType::kF32, kPart));
    Work gather = fixture.engine->AllGather(fixture.lane, own, gathered.data(), DType::kF32, kPart * ranks);
    Work reduce =
        fixture.engine->AllReduce(fixture.lane, own, sum.data(), DType::kF32, kPart, ReduceOp::kSum);
    const int next = (bootstrap.rank() + 1) % ranks;
    const int before = (bootstrap.rank() + ranks - 1) % ranks;
    Work shift =
        fixture.engine->SendReceive(fixture.lane, TensorView::Contiguous(own, DType::kF32, {kPart}), next,
                                    TensorView::Contiguous(shifted.data(), DType::kF32, {kPart}), before);
    for (Work* work : {&gather, &reduce, &shift}) WEFT_RETURN_IF_ERROR(work->WaitReleased());
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(gathered.Read(rank * kPart, 1)[0], rank + 1);
    EXPECT_EQ(sum.Read(kPart - 1, 1)[0], ranks * (ranks + 1) / 2);
    EXPECT_EQ(shifted.Read(kPart - 1, 1)[0], before + 1);
    EXPECT_EQ(fixture.engine->counters().copied_bytes, 0);
    return absl::OkStatus();
  });
}

TEST(Counters, AWaitThatReturnsAtOnceAddsNoWaitTime) {
  RunRanks(kOneNode, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, CountedSlices()));
    Work work = fixture.engine->Barrier(fixture.lane);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    const int64_t waited_ns = fixture.engine->counters().wait_ns;
    WEFT_RETURN_IF_ERROR(work.Wait());
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    EXPECT_EQ(fixture.engine->counters().wait_ns, waited_ns);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
