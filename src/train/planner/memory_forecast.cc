#include "src/train/planner/memory_forecast.h"

#include <algorithm>

#include "src/train/plan/memory_need.h"
#include "weft/core/dtype.h"

namespace weft {
namespace {

// Ranks of the first node among the `count` ranks 0, stride, 2 stride, ….
int64_t LocalRanks(const NodeMap& nodes, int count, int stride) {
  int64_t local = 0;
  for (int i = 0; i < count; ++i) local += nodes.SameNode(0, i * stride) ? 1 : 0;
  return local;
}

// Pages of peers that rank 0 reads.
int64_t PeerBytes(const LlamaConfig& model, const RunPlan& plan, const NodeMap& nodes,
                  const ReplayResult& step) {
  const int shards = plan.shard_group_size();
  const int64_t local_shards = LocalRanks(nodes, shards, 1);
  const int64_t local_replicas = LocalRanks(nodes, plan.replicate_size, shards);
  const auto images = static_cast<int64_t>(step.peaks.image_bytes);
  const auto gradients = static_cast<int64_t>(step.peaks.gradient_bytes);
  const int64_t element_bytes = plan.residency.residency == Residency::kInPlace
                                    ? static_cast<int64_t>(SizeOf(plan.parallel.param_dtype))
                                    : static_cast<int64_t>(sizeof(float));
  const int64_t sharers = LocalRanks(plan.domains.map, shards, 1);
  const int64_t shared_images =
      plan.residency.residency == Residency::kNodeShared ? images * (sharers - 1) : 0;
  const int64_t masters = model.ParameterCount() * element_bytes * (local_shards - 1) / shards;
  // A reduction reads a part of each peer's gradients. Their buffers lie elsewhere in other steps, so in time
  // the parts are all pages.
  const int64_t reduced = gradients * (local_shards - 1);
  const int64_t replicas = (shards == 1 ? gradients : TrainedElements(model, plan) * 4 / shards) *
                           (local_replicas - 1) / plan.replicate_size;
  return shared_images + masters + reduced + replicas;
}

}  // namespace

MemoryForecast ForecastMemory(const LlamaConfig& model, const MemoryNeed& need, const RunPlan& plan,
                              const NodeMap& nodes, const ReplayResult& step) {
  MemoryForecast memory;
  memory.weights = need.weights;
  memory.gradients = std::max<int64_t>(0, static_cast<int64_t>(step.peaks.shard_bytes) - need.weights);
  memory.moments = need.moments;
  memory.images = static_cast<int64_t>(step.peaks.image_bytes);
  memory.full_gradients = static_cast<int64_t>(step.peaks.gradient_bytes);
  memory.activations = need.activations;
  memory.context = step.context_peak_bytes;
  memory.scratch = step.scratch_bytes + need.scratch;
  memory.program = need.program;
  const int64_t pools =
      static_cast<int64_t>(step.peaks.shard_bytes + step.peaks.image_bytes + step.peaks.gradient_bytes) +
      step.context_peak_bytes + step.scratch_bytes;
  memory.idle = std::max<int64_t>(0, step.heap_bytes - pools);
  memory.peers = PeerBytes(model, plan, nodes, step);
  memory.at_most = need.total();
  return memory;
}

}  // namespace weft
