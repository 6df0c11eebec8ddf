#include "tests/comm/support/link_share.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "src/comm/trees/broadcast_tree.h"
#include "tests/support/rank_engine.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"
#include "weft/mesh/world_group.h"

namespace weft::testing {
namespace {

constexpr int kRounds = 8;
constexpr int64_t kElementBytes = 4;

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

// Halves of a broadcast that the busiest direction of a link carries, and the edges of the longest path.
struct Trees {
  int halves = 0;
  int edges = 0;
};
Trees TreesOver(int nodes) {
  Trees trees;
  std::vector<int> sent(static_cast<size_t>(nodes));
  for (int tree = 0; tree < kBroadcastTrees; ++tree) {
    for (int node = 0; node < nodes; ++node) {
      sent[static_cast<size_t>(node)] +=
          static_cast<int>(EdgesOfBroadcast(tree, nodes, 0, node).targets.size());
      int edges = 0;
      for (std::optional<int> at = node; (at = EdgesOfBroadcast(tree, nodes, 0, *at).source);) ++edges;
      trees.edges = std::max(trees.edges, edges);
    }
  }
  trees.halves = std::max(kBroadcastTrees, *std::max_element(sent.begin(), sent.end()));
  return trees;
}

double ShortestNs(const LinkExperiment& experiment) {
  double bytes = static_cast<double>(experiment.bytes) / experiment.nodes * (experiment.nodes - 1);
  int latencies = 2;
  if (experiment.op == LinkOp::kAllReduce) bytes *= 2;
  if (experiment.op == LinkOp::kSendReceive) bytes = static_cast<double>(experiment.bytes);
  if (experiment.op == LinkOp::kBroadcast) {
    const Trees trees = TreesOver(experiment.nodes);
    bytes = static_cast<double>(experiment.bytes) / kBroadcastTrees * trees.halves;
    latencies = 1 + trees.edges;
  }
  return bytes * 8 / experiment.gigabits + static_cast<double>(latencies * experiment.latency_ns);
}

// The parts of a buffer, one for each rank: end to end, or in alternating blocks.
std::vector<TensorView> Parts(std::byte* data, int64_t elements, int ranks, bool strided) {
  const int64_t length = strided ? 1024 : elements / ranks;
  const TensorView whole =
      TensorView::Contiguous(data, DType::kI32, {elements / (ranks * length), ranks * length});
  std::vector<TensorView> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(whole.Slice(1, rank * length, length));
  return parts;
}

absl::Status RunShare(Bootstrap& bootstrap, const LinkExperiment& experiment, CommonStart& start,
                      std::array<int64_t, kRounds>& slowest_ns) {
  const int ranks = bootstrap.size();
  const bool exchanges = experiment.op == LinkOp::kAllToAll || experiment.op == LinkOp::kStridedAllToAll ||
                         experiment.op == LinkOp::kSendReceive;
  const int64_t bytes = exchanges ? experiment.bytes / experiment.ranks_of_node : experiment.bytes;
  const int64_t elements = bytes / kElementBytes / ranks * ranks;  // Equal parts.
  const int64_t other_bytes = exchanges ? bytes : bytes / ranks;
  WEFT_ASSIGN_OR_RETURN(const RankEngine rank,
                        RankEngine::Make(bootstrap, experiment.options,
                                         {.segment_bytes = static_cast<size_t>(bytes + other_bytes) +
                                                           experiment.scratch_bytes}));
  CommEngine& engine = *rank.engine;
  WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.AddLane(WorldGroup(bootstrap), LanePurpose::kAllGather));
  WEFT_ASSIGN_OR_RETURN(Buffer whole, rank.pool->Acquire(static_cast<size_t>(bytes)));
  WEFT_ASSIGN_OR_RETURN(Buffer other, rank.pool->Acquire(static_cast<size_t>(other_bytes)));
  const auto submit = [&] {
    constexpr DType kType = DType::kI32;
    switch (experiment.op) {
      case LinkOp::kAllGather:
        return engine.AllGather(lane, other.data(), whole.data(), kType, elements);
      case LinkOp::kReduceScatter:
        return engine.ReduceScatter(lane, whole.data(), other.data(), kType, elements, ReduceOp::kSum);
      case LinkOp::kAllReduce:
        return engine.AllReduce(lane, whole.data(), whole.data(), kType, elements, ReduceOp::kSum);
      case LinkOp::kBroadcast:
        return engine.Broadcast(lane, whole.data(), kType, elements, 0);
      case LinkOp::kSendReceive:
        return engine.SendReceive(
            lane, TensorView::Contiguous(whole.data(), kType, {elements}), (bootstrap.rank() + 1) % ranks,
            TensorView::Contiguous(other.data(), kType, {elements}), (bootstrap.rank() + ranks - 1) % ranks);
      case LinkOp::kAllToAll:
      case LinkOp::kStridedAllToAll:
        break;
    }
    const bool strided = experiment.op == LinkOp::kStridedAllToAll;
    return engine.AllToAll(lane, Parts(whole.data(), elements, ranks, strided),
                           Parts(other.data(), elements, ranks, strided), kType);
  };
  for (int round = 0; round < kRounds; ++round) {
    WEFT_RETURN_IF_ERROR(engine.Barrier(lane).WaitReleased());
    start.Await(bootstrap.runtime(), round, experiment.latency_ns);
    const int64_t begin = bootstrap.runtime().NowNs();
    Work work = submit();
    while (!experiment.waited && !work.TestReleased()) bootstrap.runtime().SleepFor(5'000);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    int64_t& slowest = slowest_ns[static_cast<size_t>(round)];
    slowest = std::max(slowest, bootstrap.runtime().NowNs() - begin);
  }
  return absl::OkStatus();
}

}  // namespace

LinkUse UseOfLink(const LinkExperiment& experiment) {
  SimOptions machine;
  machine.seed = experiment.seed;
  machine.jitter = 0.05;
  machine.memory_speed = experiment.memory_speed;
  machine.wire_speed = experiment.gigabits / 8;
  machine.wire_latency_ns = experiment.latency_ns;
  std::array<int64_t, kRounds> slowest_ns{};
  CommonStart start;
  const SimReport report = RunSimulatedRanks(
      NodeMap::RanksPerNode(experiment.nodes * experiment.ranks_of_node, experiment.ranks_of_node), machine,
      [&](Bootstrap& bootstrap) { return RunShare(bootstrap, experiment, start, slowest_ns); });
  const absl::Status status = report.status();
  WEFT_CHECK(status.ok(), status.ToString().c_str());
  const double bytes = static_cast<double>(experiment.bytes) * (experiment.nodes - 1) *
                       (experiment.op == LinkOp::kAllReduce ? 2 : 1);
  const double slices = kRounds * bytes / static_cast<double>(experiment.options.slice_bytes);
  std::sort(slowest_ns.end() - 3, slowest_ns.end());
  return {ShortestNs(experiment) / static_cast<double>(*(slowest_ns.end() - 2)),
          slices / static_cast<double>(report.messages)};
}

}  // namespace weft::testing
