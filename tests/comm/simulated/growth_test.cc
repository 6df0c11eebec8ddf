// Tests of the bytes that the engine moves and allocates as the number of nodes grows. Nodes are simulated.
#include <algorithm>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/collectives/canonical_order.h"
#include "tests/comm/support/engine_fixture.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

// A small message is one slice, which a node may send to two others.
constexpr int64_t kLarge = 16 * 512;

struct Broadcast {
  NodeMap nodes;
  int root;
  WireCompression compression = WireCompression::kNone;
};

// Bytes that the ranks of each node send in a broadcast of kLarge elements. Checks what every rank receives.
std::vector<int64_t> SentByNode(const Broadcast& broadcast) {
  EngineOptions options;
  options.slice_bytes = broadcast.compression == WireCompression::kNone ? 512 : 4096;
  std::vector<int64_t> sent(static_cast<size_t>(broadcast.nodes.node_count()));
  const SimReport report = RunSimulatedRanks(broadcast.nodes, {}, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options, size_t{8} << 20));
    // Odd ranks have their buffers outside of node memory.
    WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                          TestBuffer::Make(*fixture.pool, bootstrap.rank() % 2 == 0, DType::kF32, kLarge));
    std::vector<double> message(kLarge);
    std::iota(message.begin(), message.end(), kLarge);  // Equal exponents, which compress well.
    const bool is_root = bootstrap.rank() == broadcast.root;
    buffer.Write(0, is_root ? message : std::vector<double>(kLarge, -1));
    OpOptions op;
    op.wire_compression = broadcast.compression;
    Work work =
        fixture.engine->Broadcast(fixture.lane, buffer.data(), DType::kF32, kLarge, broadcast.root, op);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    EXPECT_EQ(buffer.Read(0, kLarge), message) << "rank " << bootstrap.rank();
    sent[static_cast<size_t>(bootstrap.node())] += fixture.engine->counters().wire_bytes;
    return absl::OkStatus();
  });
  EXPECT_OK(report.status());
  return sent;
}

TEST(Growth, NoLinkCarriesMoreThanTwiceABroadcast) {
  constexpr int64_t kBytes = kLarge * 4;
  for (const NodeMap& nodes : {NodeMap::RanksPerNode(2, 1), NodeMap::RanksPerNode(13, 1),
                               NodeMap::RanksPerNode(16, 1), NodeMap::RanksPerNode(12, 3)}) {
    for (const int root : {0, nodes.size() / 2, nodes.size() - 1}) {
      SCOPED_TRACE(::testing::Message() << nodes.size() << " ranks, root " << root);
      const std::vector<int64_t> sent = SentByNode({nodes, root});
      EXPECT_EQ(std::accumulate(sent.begin(), sent.end(), int64_t{0}), kBytes * (nodes.node_count() - 1));
      for (int node = 0; node < nodes.node_count(); ++node) {
        const int64_t received = node == nodes.node_of_rank[static_cast<size_t>(root)] ? 0 : kBytes;
        EXPECT_LE(sent[static_cast<size_t>(node)] + received, 2 * kBytes) << "node " << node;
      }
    }
  }
}

TEST(Growth, CompressedBroadcastsArriveUnchanged) {
  const std::vector<int64_t> sent =
      SentByNode({NodeMap::RanksPerNode(10, 2), /*root=*/3, WireCompression::kLossless});
  EXPECT_LT(std::accumulate(sent.begin(), sent.end(), int64_t{0}), kLarge * 4 * 4);
}

// The peak of the engine's scratch memory in a reduce-scatter over nodes of one rank each.
size_t ScratchOfReduceScatter(int nodes) {
  constexpr int64_t kPart = 15 * 1024;  // A slice.
  size_t peak = 0;
  const SimReport report = RunSimulatedRanks(
      NodeMap::RanksPerNode(nodes, 1), {.jitter = 0, .mirror_nodes = true},
      [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const EngineFixture fixture,
                              EngineFixture::Make(bootstrap, {}, size_t{128} << 20));
        const int64_t elements = kPart * bootstrap.size();
        WEFT_ASSIGN_OR_RETURN(TestBuffer input, TestBuffer::Make(*fixture.pool, true, DType::kF32, elements));
        WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, true, DType::kF32, kPart));
        Work work = fixture.engine->ReduceScatter(fixture.lane, input.data(), output.data(), DType::kF32,
                                                  elements, ReduceOp::kSum);
        WEFT_RETURN_IF_ERROR(work.WaitReleased());
        peak = fixture.engine->scratch_peak_bytes();
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
  return peak;
}

TEST(Growth, ScratchOfAReductionDoesNotGrowWithTheNumberOfNodes) {
  const EngineOptions options;
  const auto slice = static_cast<size_t>(options.slice_bytes);
  // The window, and two slices of each saved value.
  const auto expected = [&](size_t saved_values) {
    const size_t window = static_cast<size_t>(options.reduce_window_bytes) / slice;
    return (window + 2 * saved_values) * slice;
  };
  EXPECT_EQ(ScratchOfReduceScatter(200), expected(2));
  EXPECT_EQ(ScratchOfReduceScatter(1000), expected(5));
  EXPECT_LT(expected(5), size_t{16} << 20);
}

// Submits a small collective on a buffer of `kSmall` i64.
constexpr int64_t kSmall = 43;
using SmallCollective = std::function<Work(EngineFixture&, TestBuffer& buffer, TestBuffer& output)>;

// Events of the simulator that small collectives on a node add, for each rank.
double EventsOnANode(int ranks, const SmallCollective& submit) {
  const auto events = [&](int operations) {
    SimOptions machine;
    machine.jitter = 0;
    machine.poll_ns = 5'000;
    const SimReport report =
        RunSimulatedRanks(NodeMap::OneNode(ranks), machine, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, size_t{1} << 20));
          WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                                TestBuffer::Make(*fixture.pool, true, DType::kI64, kSmall));
          WEFT_ASSIGN_OR_RETURN(TestBuffer output,
                                TestBuffer::Make(*fixture.pool, true, DType::kI64, kSmall * ranks));
          for (int i = 0; i < operations; ++i) {
            buffer.Write(0, std::vector<double>(kSmall, bootstrap.rank()));
            WEFT_RETURN_IF_ERROR(submit(fixture, buffer, output).WaitReleased());
          }
          return absl::OkStatus();
        });
    EXPECT_OK(report.status());
    return report.events;
  };
  return static_cast<double>(events(12) - events(2)) / ranks;
}

// Doorbells of all pairs of ranks would make it eight times as many.
TEST(Growth, SmallCollectivesOnANodeRingNoDoorbellsBetweenAllPairs) {
  const SmallCollective sum = [](EngineFixture& fixture, TestBuffer& buffer, TestBuffer& output) {
    return fixture.engine->AllReduce(fixture.lane, buffer.data(), output.data(), DType::kI64, kSmall,
                                     ReduceOp::kSum);
  };
  const SmallCollective gather = [](EngineFixture& fixture, TestBuffer& buffer, TestBuffer& output) {
    return fixture.engine->AllGather(fixture.lane, buffer.data(), output.data(), DType::kI64,
                                     fixture.engine->bootstrap().size());
  };
  for (const SmallCollective& submit : {sum, gather})
    EXPECT_LT(EventsOnANode(64, submit), 2 * EventsOnANode(8, submit));
}

// Windows of a slot and of a few, and steps of one partial sum and of several.
TEST(Growth, StepsOfAReductionKeepTheCanonicalOrder) {
  for (const int64_t fan_in : {1, 3}) {
    for (const int64_t window_slices : {1, 5}) {
      for (const NodeMap& nodes : {NodeMap::RanksPerNode(13, 1), NodeMap::RanksPerNode(14, 3)}) {
        SCOPED_TRACE(::testing::Message() << nodes.node_count() << " nodes, fan-in " << fan_in);
        EngineOptions options;
        options.slice_bytes = 128;
        options.lane_window_bytes = 256;
        options.reduce_fan_in = fan_in;
        options.reduce_window_bytes = window_slices * options.slice_bytes;
        const SimReport report = RunSimulatedRanks(nodes, {}, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                                EngineFixture::Make(bootstrap, options, size_t{8} << 20));
          return CheckCanonicalOrder(fixture, nodes.node_count() == 13 ? DType::kBF16 : DType::kF32, 75);
        });
        EXPECT_OK(report.status());
      }
    }
  }
}

}  // namespace
}  // namespace weft::testing
