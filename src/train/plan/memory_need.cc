#include "src/train/plan/memory_need.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include "weft/core/dtype.h"
#include "weft/core/rounding.h"
#include "weft/core/status.h"
#include "weft/sharding/memory_bounds.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

constexpr int64_t kMasterBytes = sizeof(float);
constexpr size_t kSegmentGranularityBytes = size_t{2} << 20;
constexpr size_t kMinSegmentBytes = size_t{64} << 20;
// Measured: resident memory of a run of the smallest model, without what its formulas account for.
constexpr int64_t kProgramBytes = int64_t{34} << 20;
// Node memory of the engine: at most some MB in the runs that were measured.
constexpr int64_t kEngineBytes = int64_t{8} << 20;

// Sets the nodes of `shape` as LargestPeaks needs them.
void SetSharers(const ShareDomains& domains, StepShape& shape) {
  // The fewest ranks of the first shard group that share its images: each of them holds the largest part.
  int sharers = shape.shard_size;
  for (int rank = 0; rank < shape.shard_size; ++rank) {
    int beside = 0;
    for (int peer = 0; peer < shape.shard_size; ++peer) beside += domains.map.SameNode(rank, peer) ? 1 : 0;
    sharers = std::min(sharers, beside);
  }
  if (sharers < shape.shard_size) shape.ranks_per_node = shape.ranks_per_domain = sharers;
}

// The shape of a step for LargestPeaks.
StepShape ShapeOfStep(const RunPlan& plan) {
  StepShape shape;
  shape.shard_size = plan.shard_group_size();
  shape.replicate_size = plan.replicate_size;
  shape.microbatches = static_cast<int>(plan.batch.microbatches);
  shape.gradient_sync = plan.parallel.grad_sync;
  shape.residency = plan.residency.residency;
  SetSharers(plan.domains, shape);
  return shape;
}

// The weights, images and gradients of `own` elements of the model on a rank.
MemoryNeed NeedOfGroups(LlamaModel& model, int64_t own, const ShardingPolicy& policy, const StepShape& shape,
                        bool updates_in_backward) {
  MemoryNeed need;
  need.weights = own * kMasterBytes;
  const absl::StatusOr<MemoryPeaks> peaks =
      LargestPeaks(GroupMembersOf(model), policy, shape, updates_in_backward);
  WEFT_CHECK(peaks.ok(), ToStd(peaks.status().message()));
  // A cast shard that ranks share counts among the images.
  const bool shares_casts = shape.residency != Residency::kPrivate && policy.param_dtype != DType::kF32;
  const int64_t casts = shares_casts ? BytesOf(own, policy.param_dtype) : 0;
  need.gradients = std::max<int64_t>(0, static_cast<int64_t>(peaks->shard_bytes) - need.weights - casts);
  need.images = static_cast<int64_t>(peaks->image_bytes) + casts;
  need.full_gradients = static_cast<int64_t>(peaks->gradient_bytes);
  need.program = kProgramBytes;
  return need;
}

// The part of a checkpoint that a rank writes, up to the limit of the saver. Replicas share the writing.
int64_t SnapshotBytes(const LlamaConfig& model, const RunPlan& plan) {
  if (!plan.saves_while_training) return 0;
  const int64_t elements = TrainedElements(model, plan) + StateElements(model, plan);
  const int64_t ranks = int64_t{plan.shard_group_size()} * plan.replicate_size;
  return std::min(CheckpointOptions().snapshot_bytes, kMasterBytes * CeilDiv(elements, ranks));
}

// Bytes of a segment for which a process has addresses. It maps the segments of all ranks of its node, and
// needs addresses for its own memory outside of them. If that leaves too few, segments have their minimum
// size, within half of the addresses, and the error of the heap names what does not fit.
size_t AddressesFor(size_t address_space, size_t ranks, const MemoryNeed& need) {
  const auto outside = static_cast<size_t>(need.outside_of_node_memory());
  const size_t left = address_space - std::min(address_space, outside);
  const size_t most = std::max(left, std::min(kMinSegmentBytes * ranks, address_space / 2)) / ranks;
  const auto needed = static_cast<size_t>(need.node_memory());
  return needed < most ? needed + (most - needed) / 2 : most;
}

std::string GiB(double bytes) { return absl::StrFormat("%.1f GiB", bytes / (1 << 30)); }

}  // namespace

std::string MemoryNeed::ToString() const {
  const std::pair<int64_t, std::string_view> parts[] = {
      {weights, "weights"},
      {gradients, "gradients"},
      {moments, "optimizer states"},
      {images, "gathered weights"},
      {full_gradients, "gradients before their reduction"},
      {snapshots, "copies for a save"},
      {key_value_cache, "the key-value cache"},
      {activations, "activations"},
      {exchanges, "exchanges"},
      {scratch + program, "scratch and program"},
  };
  std::vector<std::string> texts;
  for (const auto& [bytes, what] : parts) {
    if (bytes > 0) texts.push_back(absl::StrCat(GiB(static_cast<double>(bytes)), " of ", ToAbsl(what)));
  }
  return absl::StrJoin(texts, ", ");
}

int64_t CollectedMatrixBytes(const LlamaConfig& model, const RunPlan& plan) {
  if (plan.optimizer != OptimizerKind::kMuon || plan.shard_group_size() == 1) return 0;
  constexpr int64_t kMatricesAtOnce = 4;
  int64_t largest = 0;
  for (const Shape& shape : HiddenMatricesOfLayer(model)) largest = std::max(largest, ElementCount(shape));
  return kMatricesAtOnce * largest * kMasterBytes;
}

int64_t LargestGroup(const LlamaConfig& model) {
  const int64_t root = (model.tie_word_embeddings ? 1 : 2) * model.vocab_size * model.dim + model.dim;
  return std::max(root, (model.ParameterCount() - root) / model.layers);
}

std::vector<GroupMembers> GroupMembersOf(LlamaModel& model) {
  std::vector<GroupMembers> groups = {{"root", -1, {}}};
  absl::flat_hash_set<const Parameter*> of_units;
  for (Module* unit : model.units()) {
    groups.push_back({unit->name(), /*parent=*/0, unit->AllParameters()});
    for (const auto& parameter : groups.back().parameters) of_units.insert(parameter.get());
  }
  for (const auto& parameter : model.AllParameters()) {
    if (!of_units.contains(parameter.get())) groups.front().parameters.push_back(parameter);
  }
  return groups;
}

int64_t TrainedElements(const LlamaConfig& model, const RunPlan& plan) {
  return plan.adapter_elements().value_or(model.ParameterCount());
}

int64_t StateElements(const LlamaConfig& model, const RunPlan& plan) {
  const int64_t trained = TrainedElements(model, plan);
  switch (plan.optimizer) {
    case OptimizerKind::kAdamW:
      return 2 * trained;
    case OptimizerKind::kSgd:
      return plan.sgd.momentum == 0 ? 0 : trained;
    case OptimizerKind::kMuon: {
      int64_t matrices = 0;
      for (const Shape& shape : HiddenMatricesOfLayer(model)) matrices += ElementCount(shape);
      return 2 * trained - model.layers * matrices;
    }
  }
  return 0;
}

MemoryNeed NeedOf(LlamaModel& model, const RunPlan& plan) {
  const LlamaConfig& config = model.config();
  const int64_t shards = plan.shard_group_size();
  const int64_t own = CeilDiv(config.ParameterCount() + plan.adapter_elements().value_or(0), shards);
  MemoryNeed need = NeedOfGroups(model, own, plan.Policy(WireCompression::kNone), ShapeOfStep(plan),
                                 plan.updates_in_backward);
  need.exchanges = ContextBytes(config, plan) + CollectedMatrixBytes(config, plan) + kEngineBytes;
  const int64_t updated_parts =
      shards * (plan.parallel.shard_optimizer_over_replicas ? plan.replicate_size : 1);
  need.moments = kMasterBytes * CeilDiv(StateElements(config, plan), updated_parts);
  need.snapshots = SnapshotBytes(config, plan);
  need.activations = KeptActivationBytes(config, plan) + WorkingBytes(config, plan);
  need.scratch = ScratchBytes(config, plan);
  return need;
}

MemoryNeed NeedOfForward(LlamaModel& model, const ShardingPolicy& policy, const ShareDomains& domains,
                         Residency residency, int shard_size) {
  StepShape shape;
  shape.shard_size = shard_size;
  shape.residency = residency;
  SetSharers(domains, shape);
  int64_t elements = 0;
  for (const auto& parameter : model.AllParameters()) elements += parameter->elements();
  MemoryNeed need =
      NeedOfGroups(model, CeilDiv(elements, shard_size), policy, shape, /*updates_in_backward=*/false);
  need.weights += std::exchange(need.gradients, 0);  // Padding of shards: no parameter has a gradient.
  need.exchanges = kEngineBytes;
  return need;
}

absl::Status CheckFits(const MemoryNeed& need, int ranks, int64_t available, std::string_view remedies) {
  // Computes in double, because products of unchecked sizes may overflow an integer.
  const double total = static_cast<double>(need.total()) * ranks;
  const auto usable = static_cast<double>(UsableBytes(available));
  if (total <= usable) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the ", ranks, ranks == 1 ? " rank of a node needs " : " ranks of a node need ", GiB(total),
      ", but may take only ", GiB(usable), " of the ", GiB(static_cast<double>(available)),
      " that are available. A rank needs ", need.ToString(), ToAbsl(remedies)));
}

size_t SegmentBytes(const FreeMemory& free_memory, size_t ranks, const MemoryNeed& need) {
  const auto share_of = [ranks](size_t free_bytes) {
    return static_cast<size_t>(UsableBytes(static_cast<int64_t>(free_bytes))) / ranks;
  };
  const size_t share = share_of(free_memory.reservable());
  const size_t of_host = share_of(free_memory.host);
  const auto outside = static_cast<size_t>(need.outside_of_node_memory());
  // If the need fills the host, the segment has its minimum size, and the error of the heap names what does
  // not fit.
  const size_t left = of_host > outside + kMinSegmentBytes ? of_host - outside : kMinSegmentBytes;
  const size_t bytes = std::min({share, left, AddressesFor(free_memory.address_space, ranks, need)});
  return bytes / kSegmentGranularityBytes * kSegmentGranularityBytes;
}

absl::StatusOr<size_t> SegmentBytes(const Bootstrap& bootstrap, const MemoryNeed& need) {
  WEFT_ASSIGN_OR_RETURN(const FreeMemory free_memory, bootstrap.FreeNodeMemory());
  return SegmentBytes(free_memory, bootstrap.node_map().RanksOf(bootstrap.node()).size(), need);
}

}  // namespace weft
