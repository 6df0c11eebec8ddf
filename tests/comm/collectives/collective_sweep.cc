#include "tests/comm/collectives/collective_sweep.h"

#include <algorithm>
#include <random>
#include <utility>

#include <absl/functional/function_ref.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/comm/support/strided_parts.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "weft/memory/shared_block.h"

namespace weft::testing {
namespace {

// The memory of an operation's buffers.
enum class Memory { kNode, kOwn, kMixed };

struct Case {
  DType dtype;
  std::vector<int64_t> counts;  // By rank.
  bool equal;                   // All counts are equal, and none are passed to the engine.
  bool in_place;
  Memory memory;
  size_t number = 0;  // Of the case, in the order of the sweep.

  // True if the rank's buffer is in node memory. kMixed: inputs of every second rank, outputs of every third.
  bool HasNodeInput(int rank) const {
    return memory == Memory::kMixed ? rank % 2 == 0 : memory == Memory::kNode;
  }
  bool HasNodeOutput(int rank) const {
    return memory == Memory::kMixed ? rank % 3 == 1 : memory == Memory::kNode;
  }
  int64_t total() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
  int64_t Offset(int rank) const {
    return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  }
  absl::Span<const int64_t> CountsArgument() const {
    return equal ? absl::Span<const int64_t>() : absl::Span<const int64_t>(counts);
  }
  std::string ToString() const {
    return absl::StrCat(ToAbsl(Name(dtype)), ", ", total(), " elements, ", equal ? "equal" : "uneven", ", ",
                        in_place ? "in place" : "out of place", ", ",
                        memory == Memory::kNode  ? "node"
                        : memory == Memory::kOwn ? "own"
                                                 : "mixed",
                        " memory");
  }
};

// Element i of a rank's input. Small integers without a sign, so that sums over few ranks are exact in every
// dtype and order.
double ValueOf(int rank, int64_t i) { return static_cast<double>((rank * 5 + i * 3) % 17); }

std::vector<double> ValuesOf(int rank, int64_t begin, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = ValueOf(rank, begin++);
  return values;
}

double ReducedTwo(double a, double b, ReduceOp op) {
  const auto x = static_cast<int64_t>(a);
  const auto y = static_cast<int64_t>(b);
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return a + b;
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kBitAnd:
      return static_cast<double>(x & y);
    case ReduceOp::kBitOr:
      return static_cast<double>(x | y);
    case ReduceOp::kBitXor:
      return static_cast<double>(x ^ y);
  }
  return 0;
}

std::vector<double> Reduced(int ranks, int64_t begin, int64_t count, ReduceOp op) {
  std::vector<double> values = ValuesOf(0, begin, count);
  for (double& result : values) {
    for (int rank = 1; rank < ranks; ++rank) result = ReducedTwo(result, ValueOf(rank, begin), op);
    if (op == ReduceOp::kAverage) result /= ranks;
    ++begin;
  }
  return values;
}

// A reduction, and a factor of its result, which floats take.
struct ScaledOp {
  ReduceOp op;
  float scale;
};
// Each case has one of the rarer reductions, in turn, where its results are exact: averages over a power of
// two, and products of which the dtype holds all bits.
std::vector<ScaledOp> OpsFor(const Case& c, int ranks) {
  std::vector<ScaledOp> ops = {{ReduceOp::kSum, 1.0F}, {ReduceOp::kMax, 1.0F}, {ReduceOp::kMin, 1.0F}};
  std::vector<ReduceOp> rare = {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor};
  if (IsFloating(c.dtype)) {
    ops.push_back({ReduceOp::kSum, 0.5F});
    rare.clear();
    if ((ranks & (ranks - 1)) == 0) rare.push_back(ReduceOp::kAverage);
  }
  if (SizeOf(c.dtype) >= 4 && ranks <= 6) rare.push_back(ReduceOp::kProduct);
  if (!rare.empty()) ops.push_back({rare[c.number % rare.size()], 1.0F});
  return ops;
}

std::vector<double> Scaled(std::vector<double> values, float scale) {
  for (double& value : values) value *= static_cast<double>(scale);
  return values;
}

// Equal parts, or uneven parts of which some are empty.
std::vector<int64_t> CountsFor(int ranks, int64_t base, bool equal) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(equal ? base : rank % 3 == 1 ? 0 : base + rank);
  return counts;
}

// Each combination of the other choices is swept with one of the counts, in turn. With three dtypes or more,
// each value of a choice so meets each value of every other one.
absl::Status ForEachCase(int ranks, const SweepOptions& options, bool has_counts,
                         absl::FunctionRef<absl::Status(const Case&)> body) {
  int first_count = 0;
  size_t number = 0;
  for (DType dtype : options.dtypes) {
    int count_number = first_count++;
    for (const bool equal : {true, false}) {
      if (!equal && !has_counts) continue;
      for (const bool in_place : {false, true}) {
        for (const Memory memory : {Memory::kNode, Memory::kOwn, Memory::kMixed}) {
          const int64_t base = options.counts[static_cast<size_t>(count_number++) % options.counts.size()];
          const Case one{dtype, CountsFor(ranks, base, equal), equal, in_place, memory, number++};
          SCOPED_TRACE(one.ToString());
          if (absl::Status status = body(one); !status.ok()) return Annotate(status, one.ToString());
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SweepAllGather(EngineFixture& fixture, const SweepOptions& options) {
  const int ranks = fixture.engine->group(fixture.lane).size();
  const int me = fixture.engine->group(fixture.lane).group_rank;
  return ForEachCase(ranks, options, true, [&](const Case& c) -> absl::Status {
    const int64_t own = c.counts[static_cast<size_t>(me)];
    WEFT_ASSIGN_OR_RETURN(TestBuffer output,
                          TestBuffer::Make(*fixture.pool, c.HasNodeOutput(me), c.dtype, c.total()));
    WEFT_ASSIGN_OR_RETURN(TestBuffer input,
                          TestBuffer::Make(*fixture.pool, c.HasNodeInput(me), c.dtype, own));
    TestBuffer& source = c.in_place ? output : input;
    const int64_t at = c.in_place ? c.Offset(me) : 0;
    source.Write(at, ValuesOf(me, 0, own));
    Work work = fixture.engine->AllGather(fixture.lane, source.At(at), output.data(), c.dtype, c.total(),
                                          c.CountsArgument(), options.op);
    WEFT_RETURN_IF_ERROR(work.Wait());
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t count = c.counts[static_cast<size_t>(rank)];
      EXPECT_EQ(output.Read(c.Offset(rank), count), ValuesOf(rank, 0, count));
    }
    return work.WaitReleased();
  });
}

absl::Status SweepAllGatherShared(EngineFixture& fixture, const SweepOptions& options) {
  const ProcessGroup& world = fixture.engine->group(fixture.lane);
  const int ranks = world.size();
  const int me = world.group_rank;
  const ProcessGroup node = RanksOfThisNode(fixture.engine->bootstrap());
  const ProcessGroup domain = RanksOfThisDomain(*fixture.engine);
  WEFT_ASSIGN_OR_RETURN(const LaneId readers, fixture.engine->AddLane(node, LanePurpose::kControl));
  constexpr int64_t kMaxElements = 8192;
  WEFT_ASSIGN_OR_RETURN(const auto blocks,
                        ShareBlocks(fixture.engine->bootstrap(), *fixture.heap,
                                    {{domain.ranks, kMaxElements * sizeof(int64_t)}}, kTestTimeout));
  return ForEachCase(ranks, options, true, [&](const Case& c) -> absl::Status {
    const int64_t own = c.counts[static_cast<size_t>(me)];
    TestBuffer image = TestBuffer::Of(blocks[0].data(), c.dtype);
    WEFT_ASSIGN_OR_RETURN(TestBuffer input,
                          TestBuffer::Make(*fixture.pool, c.HasNodeInput(me), c.dtype, own));
    // Some ranks gather in place, the others do not.
    const bool in_place = c.in_place && me % 2 == 0;
    OpOptions gated = options.op;
    Work readers_done = fixture.engine->Barrier(readers);
    gated.gate = &readers_done;
    if (in_place) WEFT_RETURN_IF_ERROR(readers_done.WaitReleased());
    TestBuffer& source = in_place ? image : input;
    const int64_t at = in_place ? c.Offset(me) : 0;
    source.Write(at, ValuesOf(me, 0, own));
    Work work = fixture.engine->AllGatherShared(fixture.lane, source.At(at), image.data(), c.dtype, c.total(),
                                                c.CountsArgument(), gated);
    WEFT_RETURN_IF_ERROR(work.Wait());
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t count = c.counts[static_cast<size_t>(rank)];
      EXPECT_EQ(image.Read(c.Offset(rank), count), ValuesOf(rank, 0, count));
    }
    return work.WaitReleased();
  });
}

absl::Status SweepReduceScatter(EngineFixture& fixture, const SweepOptions& options) {
  const int ranks = fixture.engine->group(fixture.lane).size();
  const int me = fixture.engine->group(fixture.lane).group_rank;
  return ForEachCase(ranks, options, true, [&](const Case& c) -> absl::Status {
    const int64_t own = c.counts[static_cast<size_t>(me)];
    for (const auto [op, scale] : OpsFor(c, ranks)) {
      OpOptions scaled = options.op;
      scaled.scale = scale;
      WEFT_ASSIGN_OR_RETURN(TestBuffer input,
                            TestBuffer::Make(*fixture.pool, c.HasNodeInput(me), c.dtype, c.total()));
      WEFT_ASSIGN_OR_RETURN(TestBuffer output,
                            TestBuffer::Make(*fixture.pool, c.HasNodeOutput(me), c.dtype, own));
      input.Write(0, ValuesOf(me, 0, c.total()));
      TestBuffer& target = c.in_place ? input : output;
      const int64_t at = c.in_place ? c.Offset(me) : 0;
      Work work = fixture.engine->ReduceScatter(fixture.lane, input.data(), target.At(at), c.dtype, c.total(),
                                                op, c.CountsArgument(), scaled);
      WEFT_RETURN_IF_ERROR(work.Wait());
      EXPECT_EQ(target.Read(at, own), Scaled(Reduced(ranks, c.Offset(me), own, op), scale));
      WEFT_RETURN_IF_ERROR(work.WaitReleased());
    }
    return absl::OkStatus();
  });
}

absl::Status SweepAllReduce(EngineFixture& fixture, const SweepOptions& options) {
  const int ranks = fixture.engine->group(fixture.lane).size();
  const int me = fixture.engine->group(fixture.lane).group_rank;
  return ForEachCase(ranks, options, false, [&](const Case& c) -> absl::Status {
    const int64_t count = c.counts[0];
    for (const auto [op, scale] : OpsFor(c, ranks)) {
      OpOptions scaled = options.op;
      scaled.scale = scale;
      WEFT_ASSIGN_OR_RETURN(TestBuffer input,
                            TestBuffer::Make(*fixture.pool, c.HasNodeInput(me), c.dtype, count));
      WEFT_ASSIGN_OR_RETURN(TestBuffer output,
                            TestBuffer::Make(*fixture.pool, c.HasNodeOutput(me), c.dtype, count));
      input.Write(0, ValuesOf(me, 0, count));
      TestBuffer& target = c.in_place ? input : output;
      Work work =
          fixture.engine->AllReduce(fixture.lane, input.data(), target.data(), c.dtype, count, op, scaled);
      WEFT_RETURN_IF_ERROR(work.Wait());
      EXPECT_EQ(target.Read(0, count), Scaled(Reduced(ranks, 0, count, op), scale));
      WEFT_RETURN_IF_ERROR(work.WaitReleased());
    }
    return absl::OkStatus();
  });
}

absl::Status SweepAllToAll(EngineFixture& fixture, const SweepOptions& options) {
  const int ranks = fixture.engine->group(fixture.lane).size();
  const int me = fixture.engine->group(fixture.lane).group_rank;
  // Rank i sends (base + i) * (1 + j % 2) elements to rank j, or none if i + j is a multiple of 3.
  const auto count_between = [](int64_t base, int from, int to) -> int64_t {
    return (from + to) % 3 == 0 ? 0 : (base + from) * (1 + to % 2);
  };
  for (DType dtype : options.dtypes) {
    for (int64_t base : options.counts) {
      for (const bool node_memory : {true, false}) {
        Case send{dtype, {}, false, false, node_memory ? Memory::kNode : Memory::kOwn};
        Case receive = send;
        for (int rank = 0; rank < ranks; ++rank) {
          send.counts.push_back(count_between(base, me, rank));
          receive.counts.push_back(count_between(base, rank, me));
        }
        SCOPED_TRACE(send.ToString());
        WEFT_ASSIGN_OR_RETURN(TestBuffer input,
                              TestBuffer::Make(*fixture.pool, node_memory, dtype, send.total()));
        WEFT_ASSIGN_OR_RETURN(TestBuffer output,
                              TestBuffer::Make(*fixture.pool, node_memory, dtype, receive.total()));
        for (int rank = 0; rank < ranks; ++rank) {
          input.Write(send.Offset(rank),
                      ValuesOf(me + ranks * rank, 0, send.counts[static_cast<size_t>(rank)]));
        }
        Work work = fixture.engine->AllToAll(fixture.lane, input.data(), send.counts, output.data(),
                                             receive.counts, dtype);
        WEFT_RETURN_IF_ERROR(work.Wait());
        for (int rank = 0; rank < ranks; ++rank) {
          const int64_t count = receive.counts[static_cast<size_t>(rank)];
          EXPECT_EQ(output.Read(receive.Offset(rank), count), ValuesOf(rank + ranks * me, 0, count));
        }
        WEFT_RETURN_IF_ERROR(work.WaitReleased());
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SweepStridedAllToAll(EngineFixture& fixture, const SweepOptions& options) {
  const int ranks = fixture.engine->group(fixture.lane).size();
  const int me = fixture.engine->group(fixture.lane).group_rank;
  std::mt19937_64 random(static_cast<uint64_t>(me));
  constexpr uint64_t kExchanges = 12;
  for (uint64_t seed = 0; seed < kExchanges; ++seed) {
    const DType dtype = options.dtypes[seed % options.dtypes.size()];
    const bool node_memory = seed % 4 != 3;
    SCOPED_TRACE(absl::StrCat("exchange ", seed, ", ", node_memory ? "node" : "own", " memory"));
    std::vector<StridedPart> sent, received;
    std::vector<TensorView> sends, receives;
    for (int rank = 0; rank < ranks; ++rank) {
      WEFT_ASSIGN_OR_RETURN(StridedPart out, StridedPart::Make(*fixture.pool, node_memory, dtype,
                                                               DrawPartShape(seed, me, rank), random));
      WEFT_ASSIGN_OR_RETURN(StridedPart in, StridedPart::Make(*fixture.pool, node_memory, dtype,
                                                              DrawPartShape(seed, rank, me), random));
      out.Fill(me, rank);
      // An undefined view is also an empty part.
      sends.push_back(out.view().elements() == 0 && seed % 2 == 0 ? TensorView() : out.view());
      receives.push_back(in.view());
      sent.push_back(std::move(out));
      received.push_back(std::move(in));
    }
    Work work = fixture.engine->AllToAll(fixture.lane, sends, receives, dtype);
    WEFT_RETURN_IF_ERROR(work.Wait());
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_OK(received[static_cast<size_t>(rank)].Check(rank, me));
    }
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    for (int rank = 0; rank < ranks; ++rank) EXPECT_OK(sent[static_cast<size_t>(rank)].Check(me, rank));
  }
  return absl::OkStatus();
}

absl::Status SweepSendReceive(EngineFixture& fixture, const SweepOptions& options) {
  const int ranks = fixture.engine->group(fixture.lane).size();
  const int me = fixture.engine->group(fixture.lane).group_rank;
  std::mt19937_64 random(static_cast<uint64_t>(me));
  const auto exchange = [&](uint64_t seed, int to, int from) -> absl::Status {
    SCOPED_TRACE(absl::StrCat("exchange ", seed, ", to ", to, ", from ", from));
    const DType dtype = options.dtypes[seed % options.dtypes.size()];
    const bool node_memory = seed % 3 != 2;
    WEFT_ASSIGN_OR_RETURN(StridedPart out, StridedPart::Make(*fixture.pool, node_memory, dtype,
                                                             DrawPartShape(seed, me, to), random));
    WEFT_ASSIGN_OR_RETURN(StridedPart in, StridedPart::Make(*fixture.pool, node_memory, dtype,
                                                            DrawPartShape(seed, from, me), random));
    out.Fill(me, to);
    Work work = fixture.engine->SendReceive(fixture.lane, out.view(), to, in.view(), from);
    WEFT_RETURN_IF_ERROR(work.Wait());
    EXPECT_OK(in.Check(from, me));
    return work.WaitReleased();
  };
  uint64_t seed = 100;
  for (int shift = 0; shift < ranks; ++shift) {
    WEFT_RETURN_IF_ERROR(exchange(seed++, (me + shift) % ranks, (me + ranks - shift) % ranks));
    WEFT_RETURN_IF_ERROR(exchange(seed++, ranks - 1 - me, ranks - 1 - me));
  }
  return absl::OkStatus();
}

absl::Status SweepBroadcast(EngineFixture& fixture, const SweepOptions& options) {
  const int ranks = fixture.engine->group(fixture.lane).size();
  const int me = fixture.engine->group(fixture.lane).group_rank;
  for (int root = 0; root < ranks; ++root) {
    for (int64_t count : options.counts) {
      for (const bool node_memory : {true, false}) {
        SCOPED_TRACE(absl::StrCat("root ", root, ", ", count, " elements"));
        WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                              TestBuffer::Make(*fixture.pool, node_memory, DType::kF32, count));
        buffer.Write(0, ValuesOf(me, 0, count));
        Work work = fixture.engine->Broadcast(fixture.lane, buffer.data(), DType::kF32, count, root);
        WEFT_RETURN_IF_ERROR(work.Wait());
        EXPECT_EQ(buffer.Read(0, count), ValuesOf(root, 0, count));
        WEFT_RETURN_IF_ERROR(work.WaitReleased());
        Work barrier = fixture.engine->Barrier(fixture.lane);
        WEFT_RETURN_IF_ERROR(barrier.Wait());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::testing
