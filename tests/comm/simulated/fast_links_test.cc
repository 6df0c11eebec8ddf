// Collectives keep links of any speed busy, also if no thread waits for them. Times are virtual.
#include <algorithm>
#include <array>
#include <utility>

#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

constexpr int64_t kBytes = int64_t{48} << 20;

enum class Kind : uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kStridedAllToAll };

// The half of `elements` that belongs to each of two ranks: end to end, or in alternating blocks of 4 KiB.
std::array<TensorView, 2> Halves(void* data, int64_t elements, bool strided) {
  constexpr int64_t kBlock = 1024;
  const int64_t length = strided ? kBlock : elements / 2;
  const TensorView whole = TensorView::Contiguous(data, DType::kI32, {elements / (2 * length), 2 * length});
  return {whole.Slice(1, 0, length), whole.Slice(1, length, length)};
}

// Returns on all ranks at the same time, once all have begun the round.
class CommonStart {
 public:
  void Await(Runtime& runtime, int round, int64_t latency_ns) {
    if (std::exchange(round_, round) != round) begin_ns_ = runtime.NowNs() + 4 * latency_ns + 1'000'000;
    while (runtime.NowNs() < begin_ns_)
      runtime.SleepFor(std::max<int64_t>(100, (begin_ns_ - runtime.NowNs()) / 2));
  }

 private:
  int round_ = -1;
  int64_t begin_ns_ = 0;
};

struct Overlapped {
  // The time that the bytes of a collective and two latencies take, of a credit and of the data, divided by
  // the time that the collective took while all threads compute: the median of the last three rounds, as a
  // round may wait for a poll more or less.
  double share;
  double slices_of_message;  // On average, in all rounds.
};

struct Machine {
  int ranks_of_node = 1;
  size_t heap_bytes = 4 * static_cast<size_t>(kBytes);  // Of each rank.
};

Overlapped Overlap(Kind kind, double gigabits, int64_t latency_ns, const Machine& node = {}) {
  const int ranks_of_node = node.ranks_of_node;
  SimOptions machine;
  machine.jitter = 0.05;
  machine.memory_speed = 1e3;
  machine.wire_speed = gigabits / 8;
  machine.wire_latency_ns = latency_ns;
  constexpr int kRounds = 8;  // The windows grow in the first ones.
  std::array<int64_t, kRounds> slowest_ns{};
  CommonStart start;
  const SimReport report = RunSimulatedRanks(
      NodeMap::RanksPerNode(2 * ranks_of_node, ranks_of_node), machine,
      [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const EngineFixture fixture,
                              EngineFixture::Make(bootstrap, {}, node.heap_bytes));
        CommEngine& engine = *fixture.engine;
        WEFT_ASSIGN_OR_RETURN(const LaneId lane,
                              engine.AddLane(WorldGroup(bootstrap), LanePurpose::kAllGather));
        constexpr int64_t kElements = kBytes / 4;
        WEFT_ASSIGN_OR_RETURN(TestBuffer whole,
                              TestBuffer::Make(*fixture.pool, true, DType::kI32, kElements));
        WEFT_ASSIGN_OR_RETURN(TestBuffer part, TestBuffer::Make(*fixture.pool, true, DType::kI32,
                                                                kElements / (2 * ranks_of_node)));
        WEFT_ASSIGN_OR_RETURN(TestBuffer received,
                              TestBuffer::Make(*fixture.pool, true, DType::kI32, kElements));
        for (int round = 0; round < kRounds; ++round) {
          WEFT_RETURN_IF_ERROR(engine.Barrier(lane, {}).WaitReleased());
          start.Await(bootstrap.runtime(), round, latency_ns);
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
            case Kind::kAllToAll:
            case Kind::kStridedAllToAll:
              const bool strided = kind == Kind::kStridedAllToAll;
              work = engine.AllToAll(lane, Halves(whole.data(), kElements, strided),
                                     Halves(received.data(), kElements, strided), DType::kI32);
              break;
          }
          while (!work.TestReleased()) bootstrap.runtime().SleepFor(5'000);
          int64_t& slowest = slowest_ns[static_cast<size_t>(round)];
          slowest = std::max(slowest, bootstrap.runtime().NowNs() - begin);
        }
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
  const double bytes = kBytes / 2.0 * (kind == Kind::kAllReduce ? 2 : 1);
  constexpr int kNodes = 2;
  const double slices = kNodes * kRounds * bytes / static_cast<double>(EngineOptions{}.slice_bytes);
  std::sort(slowest_ns.end() - 3, slowest_ns.end());
  const auto median_ns = static_cast<double>(*(slowest_ns.end() - 2));
  return {(bytes * 8 / gigabits + 2.0 * static_cast<double>(latency_ns)) / median_ns,
          slices / static_cast<double>(report.messages)};
}

TEST(FastLinks, AreKeptBusyByCollectivesThatNoThreadWaitsFor) {
  for (const Kind kind :
       {Kind::kAllGather, Kind::kReduceScatter, Kind::kAllReduce, Kind::kAllToAll, Kind::kStridedAllToAll}) {
    EXPECT_GE(Overlap(kind, 1, 2'000'000).share, 0.95) << static_cast<int>(kind);
    EXPECT_GE(Overlap(kind, 100, 500'000).share, 0.9) << static_cast<int>(kind);
  }
}

// Ranks of a node reduce together. Their partial sums cross the link from scratch slots.
TEST(FastLinks, AreKeptBusyByPartialSums) {
  for (const Kind kind : {Kind::kReduceScatter, Kind::kAllReduce}) {
    EXPECT_GE(Overlap(kind, 100, 500'000, {.ranks_of_node = 2}).share, 0.87) << static_cast<int>(kind);
    EXPECT_GE(Overlap(kind, 400, 5'000, {.ranks_of_node = 2}).share, 0.87) << static_cast<int>(kind);
  }
}

// Beside the buffers there is memory for a part of the budget: rings and slots are smaller, and nothing
// fails.
TEST(FastLinks, AreSharedByTheSlicesForWhichThereIsMemory) {
  constexpr size_t kBuffers = static_cast<size_t>(kBytes) * 5 / 2;
  const Overlapped scarce =
      Overlap(Kind::kStridedAllToAll, 100, 500'000, {.heap_bytes = kBuffers + (size_t{4} << 20)});
  EXPECT_GE(scarce.share, 0.02);
  EXPECT_LE(scarce.share, 0.8);
}

TEST(FastLinks, CarryRunsOfSlices) {
  for (const Kind kind : {Kind::kAllGather, Kind::kReduceScatter, Kind::kAllReduce}) {
    const Overlapped slow = Overlap(kind, 10, 20'000);
    EXPECT_GE(slow.share, 0.95) << static_cast<int>(kind);
    EXPECT_LE(slow.slices_of_message, 1) << static_cast<int>(kind);
    const Overlapped fast = Overlap(kind, 400, 5'000);
    EXPECT_GE(fast.share, 0.85) << static_cast<int>(kind);
    EXPECT_GE(fast.slices_of_message, 3) << static_cast<int>(kind);
  }
}

}  // namespace
}  // namespace weft::testing
