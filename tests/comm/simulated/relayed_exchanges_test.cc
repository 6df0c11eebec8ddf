// Relayed all-gathers, reduce-scatters and all-reduces between simulated nodes, and all-reduces in a tree:
// the bits of direct ones, few messages, and errors that name ranks. See Note [Relayed exchanges].
#include <bit>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/schedule_count.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kSegmentBytes = size_t{2} << 20;
constexpr OpKind kKinds[] = {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kAllReduce};

int CeilLog2(int n) { return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1))); }

// Messages of several slices, unless `slice_bytes` is larger.
absl::StatusOr<EngineFixture> MakeFixture(Bootstrap& bootstrap, Relaying relaying,
                                          absl::Duration timeout = kTestTimeout, int64_t slice_bytes = 256) {
  EngineOptions options;
  options.relaying = relaying;
  options.recorder_entries = 4;
  options.timeout = timeout;
  options.slice_bytes = slice_bytes;
  return EngineFixture::Make(bootstrap, options, kSegmentBytes);
}

// An exchange whose parts are drawn from a seed, with some empty ones. An all-reduce is of all of them.
struct Exchange {
  OpKind kind;
  DType dtype;
  std::vector<int64_t> counts;
  double scale;
  ReduceOp op;
  bool in_node_memory;
  bool in_place;  // Of an all-reduce.

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

Exchange DrawExchange(std::mt19937& random, OpKind kind, int ranks) {
  constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kI64, DType::kF32, DType::kBF16, DType::kF16};
  Exchange exchange{kind, kDTypes[random() % 6], {}, 1.0, ReduceOp::kSum, false, false};
  exchange.in_node_memory = random() % 2 == 0;
  exchange.in_place = random() % 2 == 0;
  const bool is_scaled = exchange.dtype != DType::kI64 && random() % 2 == 0;
  if (is_scaled) exchange.scale = 0.3;
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};
  if (!is_scaled) exchange.op = kOps[random() % 4];
  constexpr unsigned kLargest[] = {3, 200, 20, 1500};
  const unsigned largest = kLargest[random() % (kind == OpKind::kAllReduce ? 4 : 2)];
  for (int rank = 0; rank < ranks; ++rank)
    exchange.counts.push_back(random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % largest));
  return exchange;
}

std::vector<double> ValuesOf(int rank, uint64_t seed, DType dtype, int64_t count) {
  std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(rank));
  const double largest = dtype == DType::kI64 ? 1e15 : 1;
  std::uniform_real_distribution<double> value(-largest, largest);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& v : values) v = value(random);
  return values;
}

// Runs the exchange on this rank. Returns the bytes of the output.
absl::StatusOr<std::string> OutputOf(EngineFixture& fixture, const Exchange& exchange, uint64_t seed) {
  const int rank = fixture.engine->bootstrap().rank();
  const OpKind kind = exchange.kind;
  const DType dtype = exchange.dtype;
  const int64_t total = exchange.total();
  const int64_t own = exchange.counts[static_cast<size_t>(rank)];
  const int64_t sent = kind == OpKind::kAllGather ? own : total;
  const int64_t received = kind == OpKind::kReduceScatter ? own : total;
  const auto make = [&](int64_t count) {
    return TestBuffer::Make(*fixture.pool, exchange.in_node_memory, dtype, count + 1);
  };
  WEFT_ASSIGN_OR_RETURN(TestBuffer input, make(sent));
  WEFT_ASSIGN_OR_RETURN(TestBuffer output, make(received));
  input.Write(0, ValuesOf(rank, seed, dtype, sent));
  TestBuffer& target = kind == OpKind::kAllReduce && exchange.in_place ? input : output;
  CommEngine& engine = *fixture.engine;
  OpOptions op;
  if (kind != OpKind::kAllGather) op.scale = exchange.scale;
  const auto submit = [&] {
    switch (kind) {
      case OpKind::kAllGather:
        return engine.AllGather(fixture.lane, input.data(), target.data(), dtype, total, exchange.counts, op);
      case OpKind::kReduceScatter:
        return engine.ReduceScatter(fixture.lane, input.data(), target.data(), dtype, total, exchange.op,
                                    exchange.counts, op);
      default:
        return engine.AllReduce(fixture.lane, input.data(), target.data(), dtype, total, exchange.op, op);
    }
  };
  WEFT_RETURN_IF_ERROR(submit().WaitReleased());
  return std::string(reinterpret_cast<const char*>(target.data()),
                     static_cast<size_t>(BytesOf(received, dtype)));
}

TEST(RelayedExchange, GivesTheBitsOfADirectOneOnEveryNodeMap) {
  const uint64_t maps = ScheduleCount(50);
  std::map<OpKind, int> relayed;
  int trees = 0;  // All-reduces whose data travels in control messages.
  for (uint64_t seed = 0; seed < maps; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const NodeMap nodes = DrawNodes(random);
    std::vector<Exchange> exchanges;
    for (const OpKind kind : kKinds) exchanges.push_back(DrawExchange(random, kind, nodes.size()));
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", nodes.size(), " ranks on ", nodes.node_count(), " nodes"));
    std::map<std::pair<OpKind, int>, std::string> direct;  // By kind and rank.
    std::map<std::pair<OpKind, Relaying>, int64_t> messages;
    for (const Relaying relaying : {Relaying::kNever, Relaying::kAlways}) {
      const SimReport report =
          RunSimulatedRanks(nodes, {.seed = seed}, [&](Bootstrap& bootstrap) -> absl::Status {
            WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap, relaying));
            for (const Exchange& exchange : exchanges) {
              const int64_t before = fixture.engine->counters().wire_messages;
              WEFT_ASSIGN_OR_RETURN(const std::string output, OutputOf(fixture, exchange, seed));
              messages[{exchange.kind, relaying}] += fixture.engine->counters().wire_messages - before;
              std::string& expected = direct[{exchange.kind, bootstrap.rank()}];
              if (relaying == Relaying::kNever) {
                expected = output;
              } else {
                EXPECT_TRUE(output == expected) << Name(exchange.kind) << ", rank " << bootstrap.rank();
              }
            }
            return absl::OkStatus();
          });
      EXPECT_OK(report.status());
    }
    for (const OpKind kind : kKinds) {
      const int64_t sent = messages[{kind, Relaying::kAlways}];
      const int64_t sent_directly = messages[{kind, Relaying::kNever}];
      relayed[kind] += sent > 0 && sent != sent_directly;
      if (kind == OpKind::kAllReduce) trees += sent == 0 && sent_directly > 0;
    }
  }
  if (ScheduleLimit()) return;
  EXPECT_GT(trees, static_cast<int>(maps) / 20);
  for (const OpKind kind : kKinds) EXPECT_GT(relayed[kind], static_cast<int>(maps) / 8) << Name(kind);
}

// Messages that a rank sends in an all-gather and in a reduce-scatter of 4 bytes a rank: one of data and a
// credit for each round. An all-reduce of 32 KiB has the rounds of both, and one of 4 KiB a single part. One
// of 344 bytes, as of a gradient norm, takes a message up the tree of nodes, and one down to each child.
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
    const int ranks = nodes.size();
    if (ranks > 64 && ScheduleLimit()) continue;
    const int bound = 2 * CeilLog2(nodes.node_count());
    const SimReport report =
        RunSimulatedRanks(nodes, {.poll_ns = 4'000}, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap, example.relaying, kTestTimeout,
                                                                   EngineOptions().slice_bytes));
          CommEngine& engine = *fixture.engine;
          std::vector<int32_t> values(static_cast<size_t>(ranks), bootstrap.rank());
          const auto messages = [&] {
            return engine.counters().control_messages + engine.counters().wire_messages;
          };
          const auto check = [&](const std::function<Work()>& submit, int most,
                                 const char* what) -> absl::Status {
            const int64_t before = messages();
            WEFT_RETURN_IF_ERROR(submit().WaitReleased());
            EXPECT_LE(messages() - before, most) << what << " of rank " << bootstrap.rank();
            return absl::OkStatus();
          };
          int32_t own = bootstrap.rank();
          WEFT_RETURN_IF_ERROR(
              check([&] { return engine.AllGather(fixture.lane, &own, values.data(), DType::kI32, ranks); },
                    bound, "all-gather"));
          for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(values[static_cast<size_t>(rank)], rank);
          WEFT_RETURN_IF_ERROR(check(
              [&] {
                return engine.ReduceScatter(fixture.lane, values.data(), &own, DType::kI32, ranks,
                                            ReduceOp::kSum);
              },
              bound, "reduce-scatter"));
          EXPECT_EQ(own, bootstrap.rank() * ranks);
          std::vector<int64_t> sums(4096);
          const auto check_sums = [&](int64_t count, int most) -> absl::Status {
            for (size_t i = 0; i < sums.size(); ++i) sums[i] = bootstrap.rank() + static_cast<int64_t>(i);
            WEFT_RETURN_IF_ERROR(check(
                [&] {
                  return engine.AllReduce(fixture.lane, sums.data(), sums.data(), DType::kI64, count,
                                          ReduceOp::kSum);
                },
                most, "all-reduce"));
            for (int64_t i = 0; i < count; ++i)
              EXPECT_EQ(sums[static_cast<size_t>(i)], ranks * (ranks - 1) / 2 + ranks * i);
            return absl::OkStatus();
          };
          WEFT_RETURN_IF_ERROR(check_sums(4096, 2 * bound));
          WEFT_RETURN_IF_ERROR(check_sums(512, bound));
          const int64_t data_messages = engine.counters().wire_messages;
          WEFT_RETURN_IF_ERROR(check_sums(43, bound / 2 + 1));
          EXPECT_EQ(engine.counters().wire_messages, data_messages);
          EXPECT_LE(engine.counters().wire_peers, bound) << "connections";
          return absl::OkStatus();
        });
    EXPECT_OK(report.status());
  }
}

constexpr int kPart = 30;  // Elements. All-reduces of as many for each rank are too large for the tree.

// An exchange of equal parts. `whole` has the elements of all ranks.
Work Submit(EngineFixture& fixture, OpKind kind, std::vector<int32_t>& whole, int32_t* part) {
  const auto count = static_cast<int64_t>(whole.size());
  CommEngine& engine = *fixture.engine;
  switch (kind) {
    case OpKind::kAllGather:
      return engine.AllGather(fixture.lane, part, whole.data(), DType::kI32, count);
    case OpKind::kReduceScatter:
      return engine.ReduceScatter(fixture.lane, whole.data(), part, DType::kI32, count, ReduceOp::kSum);
    default:
      return engine.AllReduce(fixture.lane, whole.data(), whole.data(), DType::kI32, count, ReduceOp::kSum);
  }
}

// A rank submits a larger exchange, which is direct, or a smaller one, of which an all-reduce takes the tree.
TEST(RelayedExchange, NamesTheRankThatSubmitsAnotherOperation) {
  constexpr int kRanks = 11;
  constexpr int kLarge = 13'000;  // Elements of a part that is too large to be relayed.
  constexpr int kSmall = 2;
  const struct {
    int rank;
    int elements;  // Of a part.
  } deviants[] = {{0, kLarge}, {4, kLarge}, {10, kLarge}, {0, kSmall}, {10, kSmall}};
  for (const OpKind kind : kKinds) {
    for (const auto& deviant : deviants) {
      SCOPED_TRACE(::testing::Message() << Name(kind) << " " << deviant.rank << " " << deviant.elements);
      const SimReport report =
          RunSimulatedRanks(NodeMap::RanksPerNode(kRanks, 2), {}, [&](Bootstrap& bootstrap) -> absl::Status {
            WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap, Relaying::kAlways));
            const int own = bootstrap.rank() == deviant.rank ? deviant.elements : kPart;
            std::vector<int32_t> whole(static_cast<size_t>(own) * kRanks);
            std::vector<int32_t> part(static_cast<size_t>(own));
            Work work = Submit(fixture, kind, whole, part.data());
            EXPECT_THAT(std::string(work.Wait().message()),
                        HasSubstr(absl::StrCat("rank ", deviant.rank, " submitted ")));
            return BootstrapBarrier(bootstrap);
          });
      EXPECT_OK(report.status());
    }
  }
}

// All-reduces with parts at four of six nodes, and without messages between some of them.
TEST(RelayedExchange, NamesTheRankThatReducesByAnotherOperator) {
  constexpr int kRanks = 11;
  constexpr int kElements = 4096;
  for (const int deviant : {0, 4, 5, 10}) {
    const SimReport report =
        RunSimulatedRanks(NodeMap::RanksPerNode(kRanks, 2), {}, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap, Relaying::kAlways));
          std::vector<int32_t> values(kElements);
          const ReduceOp op = bootstrap.rank() == deviant ? ReduceOp::kMax : ReduceOp::kSum;
          Work work = fixture.engine->AllReduce(fixture.lane, values.data(), values.data(), DType::kI32,
                                                kElements, op);
          EXPECT_THAT(std::string(work.Wait().message()),
                      HasSubstr(absl::StrCat("rank ", deviant, " submitted ")));
          return BootstrapBarrier(bootstrap);
        });
    EXPECT_OK(report.status());
  }
}

TEST(RelayedExchange, NamesALateRank) {
  constexpr int kRanks = 12;
  constexpr int kLate = 7;
  for (const OpKind kind : kKinds) {
    int named = 0;
    const SimReport report =
        RunSimulatedRanks(NodeMap::RanksPerNode(kRanks, 1), {}, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                                MakeFixture(bootstrap, Relaying::kAlways, absl::Milliseconds(200)));
          if (bootstrap.rank() == kLate) {
            bootstrap.runtime().SleepFor(2'000'000'000);
            return absl::OkStatus();
          }
          std::vector<int32_t> whole(size_t{kRanks} * kPart, 1);
          std::vector<int32_t> part(kPart, 1);
          Work work = Submit(fixture, kind, whole, part.data());
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
  for (const OpKind kind : kKinds) {
    const SimReport report =
        RunSimulatedRanks(NodeMap::RanksPerNode(kRanks, 2), {}, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeFixture(bootstrap, Relaying::kAlways));
          std::vector<int32_t> whole(size_t{kRanks} * kPart);
          std::vector<int32_t> part(kPart);
          {
            Work work;
            if (bootstrap.rank() == 7) {
              bootstrap.runtime().SleepFor(1'000'000);
              fixture.engine->Abort(absl::DataLossError("the disk is gone"));
            } else {
              work = Submit(fixture, kind, whole, part.data());
              EXPECT_THAT(work.Wait(),
                          StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 7: the disk is gone")));
            }
            WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
          }
          const int rank = bootstrap.rank();
          const auto value = [](int from, int element) { return 1000 * from + element; };
          for (int i = 0; i < kPart; ++i) part[static_cast<size_t>(i)] = value(rank, i);
          for (int i = 0; i < kRanks * kPart; ++i) whole[static_cast<size_t>(i)] = value(rank, i);
          WEFT_RETURN_IF_ERROR(Submit(fixture, kind, whole, part.data()).WaitReleased());
          const int first = kind == OpKind::kReduceScatter ? rank * kPart : 0;
          const std::vector<int32_t>& output = kind == OpKind::kReduceScatter ? part : whole;
          for (int i = 0; i < static_cast<int>(output.size()); ++i) {
            const int sum = 1000 * kRanks * (kRanks - 1) / 2 + kRanks * (first + i);
            EXPECT_EQ(output[static_cast<size_t>(i)],
                      kind == OpKind::kAllGather ? value(i / kPart, i % kPart) : sum);
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
        std::vector<int32_t> whole(size_t{2} * kNodes * kPart, 1);
        std::vector<int32_t> part(kPart, 1);
        for (const OpKind kind : kKinds) {
          const int64_t begin = bootstrap.runtime().NowNs();
          WEFT_RETURN_IF_ERROR(Submit(fixture, kind, whole, part.data()).WaitReleased());
          const int rounds = (kind == OpKind::kAllReduce ? 2 : 1) * CeilLog2(kNodes);
          EXPECT_GE(bootstrap.runtime().NowNs() - begin, rounds * machine.wire_latency_ns) << Name(kind);
        }
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
}

}  // namespace
}  // namespace weft::testing
