// Overlap of communication with computation, in virtual time. Ranks are on two nodes and layers compute for a
// given time. The speed of the wire alone determines the time of the bytes that the formulas give.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sharding/support/toy_training.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/median.h"
#include "weft/mesh/runtime.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

constexpr int kLayers = 8;
constexpr int64_t kWidth = 160;
constexpr double kWireSpeed = 0.125;  // Bytes a nanosecond: 1 Gbit/s.

struct Workload {
  int replicate;
  int shard;
  bool optimizer_over_replicas;
  double compute_per_wire;  // Ratio of the computation time to the wire time.
};

struct StepTimes {
  double step_ns = 0;
  double wire_ns = 0;     // Time of the bytes that a node must send.
  double compute_ns = 0;  // Forward, backward (twice the forward) and update.

  double over_bound() const { return step_ns / std::max(wire_ns, compute_ns); }
};

class Trial {
 public:
  Trial(Bootstrap& bootstrap, const Workload& workload) : bootstrap_(bootstrap), workload_(workload) {}

  absl::StatusOr<StepTimes> Run() {
    WEFT_ASSIGN_OR_RETURN(const RankEngine rank, MakeToyRank(bootstrap_));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(workload_.replicate, workload_.shard));
    ToyNet net(std::vector<int64_t>(kLayers + 1, kWidth));
    ShardingPolicy policy;
    policy.shard_optimizer_over_replicas = workload_.optimizer_over_replicas;
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *rank.engine, policy,
                                                       LoadInitialValues(kToySeed)));
    StepTimes times;
    times.wire_ns = static_cast<double>(WireBytes(*model)) / 2 / kWireSpeed;
    times.compute_ns = times.wire_ns * workload_.compute_per_wire;
    // 10 parts: 3 for forward, 6 for backward, 1 for the update.
    const auto part = static_cast<int64_t>(times.compute_ns / 10 / kLayers);
    AddComputation(net, 3 * part, 6 * part);
    constexpr int kSteps = 4;
    int64_t begin = 0;
    for (int step = 0; step < kSteps; ++step) {
      if (step == 2) begin = bootstrap_.runtime().NowNs();  // The first steps record the order.
      WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap_.rank(), bootstrap_.size(), step, 0, 1));
      WEFT_RETURN_IF_ERROR(model->ClipGradNorm(1.0).status());
      WEFT_RETURN_IF_ERROR(model->UpdateShards([&](absl::Span<const ShardView>) {
        bootstrap_.runtime().SleepFor(part);
        return absl::OkStatus();
      }));
      model->ZeroGradients();
    }
    times.step_ns = static_cast<double>(bootstrap_.runtime().NowNs() - begin) / (kSteps - 2);
    return times;
  }

 private:
  int64_t WireBytes(const ShardedModel& model) const {
    const StepShape shape = {.shard_size = workload_.shard,
                             .replicate_size = workload_.replicate,
                             .ranks_per_node = bootstrap_.size() / 2};
    return CostsOfGroups(LayoutsOf(model), model.policy(), shape).wire_bytes;
  }

  // Adds hooks that take the time of a layer's computation. They run after the hooks that gather its group.
  void AddComputation(ToyNet& net, int64_t forward_ns, int64_t backward_ns) {
    const auto sleep = [this](int64_t ns) {
      return [this, ns](Module&, Invocation&, Tensors&) {
        bootstrap_.runtime().SleepFor(ns);
        return absl::OkStatus();
      };
    };
    for (Module* layer : net.blocks()) {
      layer->AddForwardPreHook(sleep(forward_ns));
      layer->AddBackwardPreHook(sleep(backward_ns));
    }
  }

  Bootstrap& bootstrap_;
  const Workload workload_;
};

StepTimes TimesOf(const Workload& workload, uint64_t seed = 0) {
  SimOptions machine;
  machine.seed = seed;
  machine.jitter = 0.0;
  machine.wire_speed = kWireSpeed;
  machine.poll_ns = 2'000;
  machine.wake_ns = 20'000;
  StepTimes slowest;
  const auto body = [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const StepTimes times, Trial(bootstrap, workload).Run());
    if (times.step_ns > slowest.step_ns) slowest = times;
    return absl::OkStatus();
  };
  EXPECT_OK(RunSimulatedRanks(NodeMap::RanksPerNode(4, 2), machine, body).status());
  return slowest;
}

// The median of five schedules. Single ones differ by one percent.
double MedianOverBound(const Workload& workload) {
  std::vector<double> over_bound;
  for (uint64_t seed = 0; seed < 5; ++seed) over_bound.push_back(TimesOf(workload, seed).over_bound());
  return Median(std::move(over_bound));
}

TEST(SimulatedOverlap, KeepsAStepCloseToItsTimeOnTheWire) {
  // The wire time is much longer than the computation. With all-reduces the wire is idle in forward; gathers
  // of updates use that time.
  EXPECT_LT(MedianOverBound({1, 4, false, 0.4}), 1.05);
  EXPECT_LT(MedianOverBound({2, 2, false, 0.4}), 1.27);
  EXPECT_LT(MedianOverBound({2, 2, true, 0.4}), 1.16);
}

TEST(SimulatedOverlap, HidesMoreCommunicationWithTheOptimizerOverReplicas) {
  for (const double compute : {0.4, 1.0, 2.0}) {
    EXPECT_LT(TimesOf({2, 2, true, compute}).step_ns, 0.99 * TimesOf({2, 2, false, compute}).step_ns)
        << compute;
  }
}

}  // namespace
}  // namespace weft::testing
