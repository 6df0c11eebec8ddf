// Collectives keep links of any speed busy, also if no thread waits for them. Times are virtual.
#include <algorithm>

#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

constexpr int64_t kBytes = int64_t{48} << 20;

enum class Kind : uint8_t { kAllGather, kReduceScatter, kAllReduce };

// The share of the link's speed at which the bytes of the last of a few collectives arrive, while all threads
// compute.
double OverlappedShare(Kind kind, double gigabits, int64_t latency_ns) {
  SimOptions machine;
  machine.jitter = 0.05;
  machine.memory_speed = 1e3;
  machine.wire_speed = gigabits / 8;
  machine.wire_latency_ns = latency_ns;
  int64_t slowest_ns = 0;
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(2, 1), machine, [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const EngineFixture fixture, EngineFixture::Make(bootstrap, {}, 4 * kBytes));
        CommEngine& engine = *fixture.engine;
        WEFT_ASSIGN_OR_RETURN(const LaneId lane,
                              engine.AddLane(WorldGroup(bootstrap), LanePurpose::kAllGather));
        constexpr int64_t kElements = kBytes / 4;
        WEFT_ASSIGN_OR_RETURN(TestBuffer whole,
                              TestBuffer::Make(*fixture.pool, true, DType::kI32, kElements));
        WEFT_ASSIGN_OR_RETURN(TestBuffer part,
                              TestBuffer::Make(*fixture.pool, true, DType::kI32, kElements / 2));
        constexpr int kRounds = 4;
        for (int round = 0; round < kRounds; ++round) {
          WEFT_RETURN_IF_ERROR(engine.Barrier(lane, {}).WaitReleased());
          const int64_t begin = bootstrap.runtime().NowNs();
          Work work;
          switch (kind) {
            case Kind::kAllGather:
              work = engine.AllGather(lane, part.data(), whole.data(), DType::kI32, kElements, {}, {});
              break;
            case Kind::kReduceScatter:
              work = engine.ReduceScatter(lane, whole.data(), part.data(), DType::kI32, kElements,
                                          ReduceOp::kSum, {}, {});
              break;
            case Kind::kAllReduce:
              work = engine.AllReduce(lane, whole.data(), whole.data(), DType::kI32, kElements,
                                      ReduceOp::kSum, {});
              break;
          }
          while (!work.TestReleased()) bootstrap.runtime().SleepFor(5'000);
          if (round == kRounds - 1) slowest_ns = std::max(slowest_ns, bootstrap.runtime().NowNs() - begin);
        }
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
  const double bytes = kBytes / 2.0 * (kind == Kind::kAllReduce ? 2 : 1);
  return bytes * 8 / gigabits / static_cast<double>(slowest_ns);
}

TEST(FastLinks, AreKeptBusyByCollectivesThatNoThreadWaitsFor) {
  for (const Kind kind : {Kind::kAllGather, Kind::kReduceScatter, Kind::kAllReduce}) {
    EXPECT_GE(OverlappedShare(kind, 10, 20'000), 0.95) << static_cast<int>(kind);
    EXPECT_GE(OverlappedShare(kind, 50, 20'000), 0.8) << static_cast<int>(kind);
    EXPECT_GE(OverlappedShare(kind, 1, 2'000'000), 0.9) << static_cast<int>(kind);
  }
}

}  // namespace
}  // namespace weft::testing
