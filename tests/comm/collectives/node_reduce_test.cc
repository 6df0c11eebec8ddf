// Waiting ranks of a node reduce pieces of their peers' parts. See Note [Work stealing].
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

constexpr int kReducingRanks = 4;
constexpr int64_t kPart = int64_t{16} << 10;  // Elements.
constexpr int64_t kReducedElements = kReducingRanks * kPart;
constexpr double kMemorySpeed = 0.5;  // Bytes per nanosecond: the time to move data dominates.

EngineOptions SmallPieces() {
  EngineOptions options;
  options.timeout = kTestTimeout;
  options.piece_bytes = 4 << 10;
  return options;
}

// Submits a reduction of ones from its fixture's lane.
using Submit = std::function<Work(EngineFixture&, TestBuffer& input, TestBuffer& output)>;

Work ReduceScatter(EngineFixture& f, TestBuffer& input, TestBuffer& output) {
  return f.engine->ReduceScatter(f.lane, input.data(), output.data(), DType::kF32, kReducedElements,
                                 ReduceOp::kSum);
}
Work AllReduce(EngineFixture& f, TestBuffer& input, TestBuffer& output) {
  return f.engine->AllReduce(f.lane, input.data(), output.data(), DType::kF32, kReducedElements,
                             ReduceOp::kSum);
}

// Virtual nanoseconds until the reduction is *released* on all ranks. Rank 1 is `factor` times slower than
// the others.
int64_t TimeWithASlowRank(const Submit& submit, double factor, bool outputs_in_node_memory) {
  SimOptions machine;
  machine.jitter = 0;
  machine.memory_speed = kMemorySpeed;
  machine.slow = {{1, factor}};
  int64_t longest_ns = 0;
  const auto body = [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                          EngineFixture::Make(bootstrap, SmallPieces(), kSmallSegmentBytes));
    WEFT_ASSIGN_OR_RETURN(TestBuffer input,
                          TestBuffer::Make(*fixture.pool, true, DType::kF32, kReducedElements));
    WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, outputs_in_node_memory,
                                                              DType::kF32, kReducedElements));
    input.Write(0, std::vector<double>(kReducedElements, 1));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    const int64_t begin_ns = bootstrap.runtime().NowNs();
    Work work = submit(fixture, input, output);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    longest_ns = std::max(longest_ns, bootstrap.runtime().NowNs() - begin_ns);
    EXPECT_EQ(output.Read(0, kPart), std::vector<double>(kPart, kReducingRanks));
    return absl::OkStatus();
  };
  EXPECT_OK(RunSimulatedRanks(NodeMap::OneNode(kReducingRanks), machine, body).status());
  return longest_ns;
}

constexpr double kSlow = 50;
// Nanoseconds that the slow rank takes to reduce its part alone.
double OwnPartNs(int outputs) { return kSlow * static_cast<double>(kPart * 4) * outputs / kMemorySpeed; }

TEST(WorkStealing, EndsAReductionBeforeASlowRankCouldReduceItsPart) {
  EXPECT_LT(static_cast<double>(TimeWithASlowRank(ReduceScatter, kSlow, true)), OwnPartNs(1) / 4);
  EXPECT_LT(static_cast<double>(TimeWithASlowRank(AllReduce, kSlow, true)), OwnPartNs(kReducingRanks) / 4);
}

TEST(WorkStealing, LeavesAnOutputOutsideNodeMemoryToItsOwner) {
  EXPECT_GE(static_cast<double>(TimeWithASlowRank(ReduceScatter, kSlow, false)), OwnPartNs(1));
}

// Half of the ranks first wait for *ready*, the other half waits only for *released*.
TEST(WorkStealing, GivesTheSameResultsForEveryMixOfWaits) {
  RunRanks(NodeMap::OneNode(kReducingRanks), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SmallPieces()));
    WEFT_ASSIGN_OR_RETURN(TestBuffer input,
                          TestBuffer::Make(*fixture.pool, true, DType::kF32, kReducedElements));
    WEFT_ASSIGN_OR_RETURN(TestBuffer output,
                          TestBuffer::Make(*fixture.pool, true, DType::kF32, kReducedElements));
    for (int round = 0; round < 20; ++round) {
      input.Write(0, std::vector<double>(kReducedElements, round));
      Work work = round % 2 == 0 ? ReduceScatter(fixture, input, output) : AllReduce(fixture, input, output);
      if (bootstrap.rank() % 2 == round / 2 % 2) WEFT_RETURN_IF_ERROR(work.Wait());
      WEFT_RETURN_IF_ERROR(work.WaitReleased());
      EXPECT_EQ(output.Read(0, kPart), std::vector<double>(kPart, kReducingRanks * round));
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
