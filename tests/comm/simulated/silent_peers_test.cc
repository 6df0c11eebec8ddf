// An operation that a rank has not started yet does not slow the traffic of the other ranks. Times are
// virtual, and each is compared with that of the same traffic alone.
#include <algorithm>
#include <functional>
#include <limits>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/schedule_count.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

constexpr int kPeers = 4;
constexpr int64_t kCount = int64_t{1} << 20;  // Elements of each operation.
constexpr int64_t kMillisecond = 1'000'000;

// Links of 1 Gbit/s and a latency that small windows do not cover. Without jitter, the difference of two runs
// comes from the engine alone.
SimOptions Machine() {
  SimOptions machine;
  machine.jitter = 0;
  machine.wire_speed = 0.125;
  machine.wire_latency_ns = kMillisecond / 2;
  return machine;
}

enum class Stalled : uint8_t { kNothing, kBroadcast, kAllGather, kReduceScatter, kAllReduce };
// How a thread learns that the traffic is complete: in Work::Wait, or by Work::Test between sleeps.
enum class Wait : uint8_t { kWaits, kPolls };

struct Scenario {
  Stalled stalled;
  Priority priority;
  Wait wait;
  int64_t offset_ns = 0;  // Moves the start of the traffic between two polls of the peers.
};

class Rank {
 public:
  Rank(Bootstrap& bootstrap, const Scenario& scenario) : bootstrap_(bootstrap), scenario_(scenario) {}

  // Rank 0 submits the stalled operation only when ranks 2 and 3 have finished their traffic. Sets
  // `traffic_ns` to the time of the traffic.
  absl::Status Run(int64_t& traffic_ns) {
    WEFT_ASSIGN_OR_RETURN(fixture_, EngineFixture::Make(bootstrap_, {}, size_t{64} << 20));
    const int rank = bootstrap_.rank();
    const ProcessGroup pair{"pair", rank < 2 ? std::vector{0, 1} : std::vector{2, 3}, rank % 2};
    WEFT_ASSIGN_OR_RETURN(const LaneId traffic_lane,
                          fixture_.engine->AddLane(pair, LanePurpose::kReduceScatter));
    WEFT_ASSIGN_OR_RETURN(lane_, fixture_.engine->AddLane(WorldGroup(bootstrap_), LanePurpose::kContext));
    WEFT_ASSIGN_OR_RETURN(buffer_, TestBuffer::Make(*fixture_.pool, true, DType::kI32, kCount));
    WEFT_ASSIGN_OR_RETURN(traffic_, TestBuffer::Make(*fixture_.pool, true, DType::kI32, kCount));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap_));
    Work stalled;
    if (rank != 0) stalled = SubmitStalled();
    // Parts that can arrive do so first.
    bootstrap_.runtime().SleepFor(500 * kMillisecond + scenario_.offset_ns);
    if (rank >= 2) WEFT_RETURN_IF_ERROR(MoveTraffic(traffic_lane, traffic_ns));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap_));
    if (rank == 0) stalled = SubmitStalled();
    return stalled.valid() ? stalled.WaitReleased() : absl::OkStatus();
  }

 private:
  Work SubmitStalled() {
    CommEngine& engine = *fixture_.engine;
    OpOptions options;
    options.priority = scenario_.priority;
    std::byte* memory = buffer_.data();
    std::byte* own = buffer_.At(bootstrap_.rank() * (kCount / kPeers));
    switch (scenario_.stalled) {
      case Stalled::kNothing:
        return {};
      case Stalled::kBroadcast:
        return engine.Broadcast(lane_, memory, DType::kI32, kCount, /*root=*/0, options);
      case Stalled::kAllGather:
        return engine.AllGather(lane_, own, memory, DType::kI32, kCount, {}, options);
      case Stalled::kReduceScatter:
        return engine.ReduceScatter(lane_, memory, own, DType::kI32, kCount, ReduceOp::kSum, {}, options);
      case Stalled::kAllReduce:
        break;
    }
    return engine.AllReduce(lane_, memory, memory, DType::kI32, kCount, ReduceOp::kSum, options);
  }

  absl::Status MoveTraffic(LaneId lane, int64_t& traffic_ns) {
    Runtime& runtime = bootstrap_.runtime();
    const int64_t begin = runtime.NowNs();
    Work work = fixture_.engine->AllReduce(lane, traffic_.data(), traffic_.data(), DType::kI32, kCount,
                                           ReduceOp::kSum);
    while (scenario_.wait == Wait::kPolls && !work.Test()) runtime.SleepFor(kMillisecond / 10);
    WEFT_RETURN_IF_ERROR(work.Wait());
    traffic_ns = runtime.NowNs() - begin;
    return work.WaitReleased();
  }

  Bootstrap& bootstrap_;
  const Scenario scenario_;
  EngineFixture fixture_;
  LaneId lane_;
  TestBuffer buffer_, traffic_;
};

// The time of the traffic at rank 3.
int64_t TrafficNs(const Scenario& scenario) {
  int64_t at_rank_3 = 0;
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(kPeers, 1), Machine(), [&](Bootstrap& bootstrap) {
        int64_t traffic_ns = 0;
        const absl::Status status = Rank(bootstrap, scenario).Run(traffic_ns);
        if (bootstrap.rank() == 3) at_rank_3 = traffic_ns;
        return status;
      });
  EXPECT_OK(report.status());
  return at_rank_3;
}

TEST(SilentPeers, DoNotSlowTheTrafficOfOthers) {
  for (const Wait wait : {Wait::kWaits, Wait::kPolls}) {
    const int64_t alone_ns = TrafficNs({Stalled::kNothing, Priority::kBulk, wait});
    EXPECT_GT(alone_ns, 0);
    for (const Stalled stalled :
         {Stalled::kBroadcast, Stalled::kAllGather, Stalled::kReduceScatter, Stalled::kAllReduce}) {
      for (const Priority priority : {Priority::kCritical, Priority::kBulk}) {
        const int is_bulk = priority == Priority::kBulk ? 1 : 0;
        if (!IsInSample(static_cast<int>(wait), static_cast<int>(stalled), is_bulk)) continue;
        // A phase of the polls may cost a round trip, which is 3% of the time; a stalled window costs all.
        int64_t beside_ns = std::numeric_limits<int64_t>::max();
        for (const int64_t offset_ns : {0, 160'000, 400'000})
          beside_ns = std::min(beside_ns, TrafficNs({stalled, priority, wait, offset_ns}));
        EXPECT_LT(static_cast<double>(beside_ns), 1.02 * static_cast<double>(alone_ns))
            << "stalled operation " << static_cast<int>(stalled) << " of priority " << ToAbsl(Name(priority))
            << ", traffic is " << (wait == Wait::kWaits ? "waited for" : "polled");
      }
    }
  }
}

}  // namespace
}  // namespace weft::testing
