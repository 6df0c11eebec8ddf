// Relayed all-gathers and reduce-scatters between simulated nodes: the bits of direct ones, few messages, and
// errors that name ranks. See Note [Relayed exchanges].
#include <bit>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/schedule_count.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kSegmentBytes = size_t{1} << 20;

int CeilLog2(int n) { return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1))); }

// Messages of several slices, unless `slice_bytes` is larger.
absl::StatusOr<EngineFixture> MakeFixture(Bootstrap& bootstrap, Relaying relaying,
                                          absl::Duration timeout = absl::Seconds(60),
                                          int64_t slice_bytes = 256) {
  EngineOptions options;
  options.relaying = relaying;
  options.recorder_entries = 4;
  options.timeout = timeout;
  options.slice_bytes = slice_bytes;
  return EngineFixture::Make(bootstrap, options, kSegmentBytes);
}

// An exchange whose parts are drawn from a seed, with some empty ones.
struct Exchange {
  OpKind kind;
  DType dtype;
  std::vector<int64_t> counts;
  double scale;
  bool in_node_memory;

  int64_t total() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
};

// Nodes of 1, 2 or 4 consecutive ranks, of which the last may have fewer, or of any sizes.
NodeMap DrawNodes(std::mt19937& random) {
  const auto draw = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  if (draw(0, 2) > 0) {
    const int ranks = draw(2, 14);
    return NodeMap::RanksPerNode(ranks, 1 << draw(0, 2));
  }
  NodeMap nodes;
  const bool is_cyclic = draw(0, 3) == 0;
  const int count = draw(2, 5);
  for (int node = 0; node < count; ++node) {
    for (int rank = draw(1, 3); rank > 0; --rank)
      nodes.node_of_rank.push_back(is_cyclic ? static_cast<int>(nodes.node_of_rank.size()) % count : node);
  }
  if (nodes.node_count() < 2) nodes.node_of_rank.push_back(nodes.node_count());
  return nodes;
}

Exchange DrawExchange(std::mt19937& random, int ranks) {
  constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
  Exchange exchange{random() % 3 == 0 ? OpKind::kAllGather : OpKind::kReduceScatter,
                    kDTypes[random() % 4],
                    {},
                    random() % 2 == 0 ? 1.0 : 0.3,
                    random() % 2 == 0};
  const unsigned largest = random() % 2 == 0 ? 3 : 200;
  for (int rank = 0; rank < ranks; ++rank)
    exchange.counts.push_back(random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % largest));
  return exchange;
}

std::vector<double> ValuesOf(int rank, uint64_t seed, int64_t count) {
  std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(rank));
  std::uniform_real_distribution<double> value(-1, 1);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& v : values) v = value(random);
  return values;
}

// Runs the exchange on this rank. Returns the bytes of the output.
absl::StatusOr<std::string> OutputOf(EngineFixture& fixture, const Exchange& exchange, uint64_t seed) {
  const int rank = fixture.engine->bootstrap().rank();
  const bool gathers = exchange.kind == OpKind::kAllGather;
  const int64_t own = exchange.counts[static_cast<size_t>(rank)];
  const int64_t sent = gathers ? own : exchange.total();
  const int64_t received = gathers ? exchange.total() : own;
  WEFT_ASSIGN_OR_RETURN(TestBuffer input,
                        TestBuffer::Make(*fixture.pool, exchange.in_node_memory, exchange.dtype, sent + 1));
  WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, exchange.in_node_memory,
                                                            exchange.dtype, received + 1));
  input.Write(0, ValuesOf(rank, seed, sent));
  OpOptions op;
  if (!gathers) op.scale = exchange.scale;
  Work work = gathers
                  ? fixture.engine->AllGather(fixture.lane, input.data(), output.data(), exchange.dtype,
                                              exchange.total(), exchange.counts, op)
                  : fixture.engine->ReduceScatter(fixture.lane, input.data(), output.data(), exchange.dtype,
                                                  exchange.total(), ReduceOp::kSum, exchange.counts, op);
  WEFT_RETURN_IF_ERROR(work.WaitReleased());
  return std::string(reinterpret_cast<const char*>(output.data()),
                     static_cast<size_t>(received) * SizeOf(exchange.dtype));
}

TEST(RelayedExchange, GivesTheBitsOfADirectOneOnEveryNodeMap) {
  const uint64_t maps = ScheduleCount(60);
  int64_t fewer_messages = 0;
  for (uint64_t seed = 0; seed < maps; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const NodeMap nodes = DrawNodes(random);
    const Exchange exchange = DrawExchange(random, nodes.size());
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", nodes.size(), " ranks on ", nodes.node_count(), " nodes"));
    std::vector<std::string> direct(static_cast<size_t>(nodes.size()));
    int64_t messages[] = {0, 0};
    for (const Relaying relaying : {Relaying::kNever, Relaying::kAlways}) {
      const SimReport report =
          RunSimulatedRanks(nodes, {.seed = seed}, [&](Bootstrap& bootstrap) -> absl::Status {
            WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap, relaying));
            WEFT_ASSIGN_OR_RETURN(const std::string output, OutputOf(fixture, exchange, seed));
            std::string& expected = direct[static_cast<size_t>(bootstrap.rank())];
            messages[relaying == Relaying::kAlways ? 1 : 0] += fixture.engine->counters().wire_messages;
            if (relaying == Relaying::kNever) {
              expected = output;
            } else {
              EXPECT_TRUE(output == expected) << "rank " << bootstrap.rank();
            }
            return absl::OkStatus();
          });
      EXPECT_OK(report.status());
    }
    if (messages[1] < messages[0]) ++fewer_messages;
  }
  EXPECT_GT(fewer_messages, static_cast<int64_t>(maps) / 4);  // Exchanges are relayed indeed.
}

// Messages that a rank sends in an all-gather and in a reduce-scatter of 4 bytes a rank: one of data and a
// credit for each round.
TEST(RelayedExchange, SendsLogarithmicallyManyMessages) {
  const struct {
    NodeMap nodes;
    Relaying relaying;
  } cases[] = {{NodeMap::RanksPerNode(8, 1), Relaying::kAlways},
               {NodeMap::RanksPerNode(64, 1), Relaying::kAlways},
               {NodeMap::RanksPerNode(96, 2), Relaying::kAlways},
               {NodeMap::RanksPerNode(512, 1), Relaying::kWhereItPays}};
  for (const auto& example : cases) {
    const NodeMap& nodes = example.nodes;
    const Relaying relaying = example.relaying;
    const int ranks = nodes.size();
    if (ranks > 64 && ScheduleLimit()) continue;
    const int bound = 2 * CeilLog2(nodes.node_count());
    const SimReport report =
        RunSimulatedRanks(nodes, {.poll_ns = 4'000}, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap, relaying, absl::Seconds(60),
                                                                   EngineOptions().slice_bytes));
          CommEngine& engine = *fixture.engine;
          std::vector<int32_t> values(static_cast<size_t>(ranks), bootstrap.rank());
          const auto messages = [&] {
            return engine.counters().control_messages + engine.counters().wire_messages;
          };
          const auto check = [&](Work work, const char* what) -> absl::Status {
            const int64_t before = messages();
            WEFT_RETURN_IF_ERROR(work.WaitReleased());
            EXPECT_LE(messages() - before, bound) << what << " of rank " << bootstrap.rank();
            return absl::OkStatus();
          };
          int32_t own = bootstrap.rank();
          WEFT_RETURN_IF_ERROR(
              check(engine.AllGather(fixture.lane, &own, values.data(), DType::kI32, ranks), "all-gather"));
          for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(values[static_cast<size_t>(rank)], rank);
          WEFT_RETURN_IF_ERROR(check(
              engine.ReduceScatter(fixture.lane, values.data(), &own, DType::kI32, ranks, ReduceOp::kSum),
              "reduce-scatter"));
          EXPECT_EQ(own, bootstrap.rank() * ranks);
          EXPECT_LE(engine.counters().wire_peers, bound) << "connections";
          return absl::OkStatus();
        });
    EXPECT_OK(report.status());
  }
}

// A rank submits a larger exchange, which has the form that the others do not have.
TEST(RelayedExchange, NamesTheRankThatSubmitsAnotherOperation) {
  constexpr int kRanks = 11;
  constexpr int kLarge = 13'000;  // Elements of a part that is too large to be relayed.
  for (const bool gathers : {true, false}) {
    for (const int deviant : {0, 4, 10}) {
      SCOPED_TRACE(::testing::Message() << (gathers ? "gather" : "sum") << ", rank " << deviant);
      const SimReport report =
          RunSimulatedRanks(NodeMap::RanksPerNode(kRanks, 2), {}, [&](Bootstrap& bootstrap) -> absl::Status {
            WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap, Relaying::kAlways));
            std::vector<float> whole(size_t{kLarge} * kRanks);
            std::vector<float> part(kLarge);
            const int64_t count = bootstrap.rank() == deviant ? int64_t{kLarge} * kRanks : kRanks;
            Work work = gathers ? fixture.engine->AllGather(fixture.lane, part.data(), whole.data(),
                                                            DType::kF32, count)
                                : fixture.engine->ReduceScatter(fixture.lane, whole.data(), part.data(),
                                                                DType::kF32, count, ReduceOp::kSum);
            EXPECT_THAT(std::string(work.Wait().message()),
                        HasSubstr(absl::StrCat("rank ", deviant, " submitted ")));
            return BootstrapBarrier(bootstrap);
          });
      EXPECT_OK(report.status());
    }
  }
}

// An exchange of 4 bytes a rank.
Work SubmitSmall(EngineFixture& fixture, bool gathers, std::vector<int32_t>& whole, int32_t& part) {
  const auto ranks = static_cast<int64_t>(whole.size());
  return gathers ? fixture.engine->AllGather(fixture.lane, &part, whole.data(), DType::kI32, ranks)
                 : fixture.engine->ReduceScatter(fixture.lane, whole.data(), &part, DType::kI32, ranks,
                                                 ReduceOp::kSum);
}

TEST(RelayedExchange, NamesALateRank) {
  constexpr int kRanks = 12;
  constexpr int kLate = 7;
  for (const bool gathers : {true, false}) {
    int named = 0;
    const SimReport report =
        RunSimulatedRanks(NodeMap::RanksPerNode(kRanks, 1), {}, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                                MakeFixture(bootstrap, Relaying::kAlways, absl::Milliseconds(200)));
          if (bootstrap.rank() == kLate) {
            bootstrap.runtime().SleepFor(2'000'000'000);
            return absl::OkStatus();
          }
          std::vector<int32_t> whole(kRanks, 1);
          int32_t part = 1;
          Work work = SubmitSmall(fixture, gathers, whole, part);
          EXPECT_THAT(std::string(work.Wait().message()),
                      HasSubstr(absl::StrCat("; rank(s) ", kLate, " have not")));
          ++named;
          return absl::OkStatus();
        });
    EXPECT_EQ(named, kRanks - 1);
  }
}

TEST(RelayedExchange, RunsAfterAResetInTheMiddleOfOne) {
  constexpr int kRanks = 12;
  for (const bool gathers : {true, false}) {
    const SimReport report =
        RunSimulatedRanks(NodeMap::RanksPerNode(kRanks, 2), {}, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap, Relaying::kAlways));
          std::vector<int32_t> whole(kRanks, 1);
          int32_t part = 0;
          {
            Work work;
            if (bootstrap.rank() == 7) {
              bootstrap.runtime().SleepFor(1'000'000);
              fixture.engine->Abort(absl::DataLossError("the disk is gone"));
            } else {
              work = SubmitSmall(fixture, gathers, whole, part);
              EXPECT_THAT(work.Wait(),
                          StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 7: the disk is gone")));
            }
            WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
          }
          const int rank = bootstrap.rank();
          part = 10 + rank;
          for (int to = 0; to < kRanks; ++to) whole[static_cast<size_t>(to)] = gathers ? 0 : 100 * rank + to;
          WEFT_RETURN_IF_ERROR(SubmitSmall(fixture, gathers, whole, part).WaitReleased());
          if (!gathers) {
            EXPECT_EQ(part, 100 * kRanks * (kRanks - 1) / 2 + kRanks * rank);
          } else {
            for (int from = 0; from < kRanks; ++from) EXPECT_EQ(whole[static_cast<size_t>(from)], 10 + from);
          }
          return absl::OkStatus();
        });
    EXPECT_OK(report.status());
  }
}

// See Note [Mirrored nodes].
TEST(RelayedExchange, TakesARoundForEachLevelBetweenMirroredNodes) {
  constexpr int kNodes = 48;
  SimOptions machine;
  machine.jitter = 0;
  machine.mirror_nodes = true;
  machine.wire_latency_ns = 1'000'000;
  const SimReport report = RunSimulatedRanks(
      NodeMap::RanksPerNode(2 * kNodes, 2), machine, [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap, Relaying::kAlways));
        std::vector<float> whole(size_t{2} * kNodes, 1);
        float part = 1;
        for (const bool gathers : {true, false}) {
          const int64_t begin = bootstrap.runtime().NowNs();
          Work work =
              gathers ? fixture.engine->AllGather(fixture.lane, &part, whole.data(), DType::kF32, 2 * kNodes)
                      : fixture.engine->ReduceScatter(fixture.lane, whole.data(), &part, DType::kF32,
                                                      2 * kNodes, ReduceOp::kSum);
          WEFT_RETURN_IF_ERROR(work.WaitReleased());
          EXPECT_GE(bootstrap.runtime().NowNs() - begin, CeilLog2(kNodes) * machine.wire_latency_ns);
        }
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
}

}  // namespace
}  // namespace weft::testing
