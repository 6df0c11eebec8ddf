#include "weft/sharding/memory_bounds.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "sharding/plan/execution_order.h"
#include "sharding/plan/group_spec.h"
#include "sharding/plan/region_plan.h"
#include "sharding/plan/replica_slices.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Sizes of one group's gradients on a rank, in bytes.
struct GradientSizes {
  size_t image = 0;    // Full gradients.
  size_t input = 0;    // Input of the reduction if it is not the image.
  size_t reduced = 0;  // This rank's part, in the dtype of the reduction.
  size_t partial = 0;  // This rank's part, in the dtype of the master.
  size_t updated = 0;  // The elements that this rank updates, in the dtype of the master.
};

GradientSizes SizesOf(const GroupSpec& spec, const ShardingPolicy& policy, const StepShape& shape) {
  const FlatLayout& layout = spec.layout;
  if (layout.frozen()) return {};
  const ParameterDTypes& dtypes = spec.dtypes;
  GradientSizes sizes;
  sizes.image = BytesOf(layout.gradient_image_elements(), dtypes.gradient_dtype());
  if (!spec.is_zero_copy()) {
    sizes.input = BytesOf(layout.reduced_elements(), dtypes.reduce);
  } else if (dtypes.gradient_dtype() != dtypes.reduce) {
    sizes.input = BytesOf(layout.gradient_image_elements(), dtypes.reduce);
  }
  const int64_t reduced = layout.reduced_elements(shape.shard_rank);
  sizes.reduced = BytesOf(reduced, dtypes.reduce);
  sizes.partial = sizes.updated = BytesOf(reduced, dtypes.master);
  if (policy.shard_optimizer_over_replicas) {
    const ProcessGroup replicas{"replicate", std::vector<int>(static_cast<size_t>(shape.replicate_size)),
                                shape.replicate_rank};
    sizes.updated = BytesOf(
        UpdatedElements(DividedSlices(layout, shape.shard_rank, dtypes.reduce, {replicas})), dtypes.master);
  }
  return sizes;
}

// Full gradients of the microbatches of a step.
class GradientSimulation {
 public:
  GradientSimulation(const std::vector<GradientSizes>& sizes, const ShardingPolicy& policy,
                     const StepShape& shape, bool updates_in_backward)
      : sizes_(sizes),
        // In a shard group of one rank, the input of a reduction is its output, and becomes the sum.
        keeps_outputs_(shape.shard_size == 1 && policy.reduce_dtype == DType::kF32),
        keeps_sums_(!policy.shard_optimizer_over_replicas && !updates_in_backward),
        most_in_flight_(MostInFlight(policy, shape)),
        has_image_(sizes_.size()),
        has_sum_(sizes_.size()) {}

  enum class Scope : uint8_t { kNone, kShard, kAll };

  void Backward(absl::Span<const PassEvent> order, Scope scope) {
    for (const PassEvent event : order) {
      const auto group = static_cast<size_t>(event.group);
      if (event.kind == PassEvent::Kind::kBegin) {
        if (!has_image_[group]) Take(sizes_[group].image);
        has_image_[group] = true;
      } else if (scope != Scope::kNone) {
        Reduce(group, scope);
      }
    }
  }
  size_t peak() const { return peak_; }

 private:
  struct Reduction {
    size_t bytes;
    bool is_kept;  // True if the input stays as the sum.
  };

  static size_t MostInFlight(const ShardingPolicy& policy, const StepShape& shape) {
    if (shape.shard_size > 1) return static_cast<size_t>(policy.max_reduce_scatters);
    return shape.replicate_size > 1 ? static_cast<size_t>(policy.max_all_reduces) : 0;
  }

  void Take(size_t bytes) {
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
  }
  void Reduce(size_t group, Scope scope) {
    const GradientSizes& sizes = sizes_[group];
    if (sizes.image == 0) return;  // Frozen: nothing is reduced.
    const size_t bytes = sizes.input > 0 ? sizes.input : sizes.image;
    if (sizes.input > 0) {
      Take(sizes.input);
      in_use_ -= sizes.image;
    }
    has_image_[group] = false;
    const bool keeps = keeps_outputs_ && (keeps_sums_ || scope == Scope::kShard);
    if (!keeps && has_sum_[group]) in_use_ -= bytes;  // It has been added to the input.
    in_flight_.push_back({bytes, keeps && !has_sum_[group]});
    has_sum_[group] = keeps;
    for (; in_flight_.size() > most_in_flight_; in_flight_.pop_front()) {
      if (!in_flight_.front().is_kept) in_use_ -= in_flight_.front().bytes;
    }
  }

  const std::vector<GradientSizes>& sizes_;
  const bool keeps_outputs_, keeps_sums_;
  const size_t most_in_flight_;
  std::vector<bool> has_image_, has_sum_;  // By group.
  std::deque<Reduction> in_flight_;
  size_t in_use_ = 0;
  size_t peak_ = 0;
};

size_t LargestGradients(const std::vector<GradientSizes>& sizes, absl::Span<const PassEvent> order,
                        const ShardingPolicy& policy, const StepShape& shape, bool updates_in_backward) {
  GradientSimulation simulation(sizes, policy, shape, updates_in_backward);
  using Scope = GradientSimulation::Scope;
  const Scope scope = shape.gradient_sync == GradientSync::kLast            ? Scope::kNone
                      : shape.gradient_sync == GradientSync::kReduceScatter ? Scope::kShard
                                                                            : Scope::kAll;
  // All microbatches between the first and the last are alike.
  const int passes = std::min(shape.microbatches, 3);
  for (int pass = 1; pass <= passes; ++pass) simulation.Backward(order, pass == passes ? Scope::kAll : scope);
  return simulation.peak();
}

// The largest sum of `bytes` over `count` consecutive groups. `repeats`: the first group follows the last.
size_t LargestWindow(const std::vector<size_t>& bytes, size_t count, bool repeats) {
  if (bytes.empty()) return 0;
  const size_t steps = bytes.size() + (repeats ? count - 1 : 0);
  size_t largest = 0, sum = 0;
  for (size_t i = 0; i < steps; ++i) {
    sum += bytes[i % bytes.size()];
    if (i >= count) sum -= bytes[(i - count) % bytes.size()];
    largest = std::max(largest, sum);
  }
  return largest;
}

// Reduced gradients, partial sums, and outputs of reductions that are under way.
size_t LargestSums(const std::vector<GradientSizes>& sizes, const ShardingPolicy& policy,
                   const StepShape& shape, bool updates_in_backward) {
  const bool adds_up = shape.microbatches > 1 && shape.gradient_sync != GradientSync::kLast;
  const bool has_partial = adds_up && shape.gradient_sync == GradientSync::kReduceScatter;
  const bool is_alone = shape.shard_size == 1;
  const bool divides = policy.shard_optimizer_over_replicas;
  const bool converts = policy.reduce_dtype != DType::kF32;
  const bool frees = updates_in_backward && !adds_up;
  size_t sums = 0;
  std::vector<size_t> under_way;  // By group, beside its sum.
  for (const GradientSizes& group : sizes) {
    if (group.image == 0) continue;  // Frozen.
    // In a shard group of one rank, sums without a cast lie among the full gradients.
    const bool holds_partial = has_partial && (!is_alone || converts);
    const size_t sum = holds_partial ? std::max(group.partial, group.updated) : group.updated;
    const bool holds_sum = !is_alone || divides || converts;
    const size_t kept = holds_sum && !frees ? sum : 0;
    sums += kept;
    const size_t outputs = (is_alone ? 0 : group.reduced) + (divides ? group.updated : 0);
    const size_t converted = converts ? group.updated : 0;
    // The output of a first reduction becomes the sum.
    const bool becomes_sum = kept > 0 && !adds_up && !divides && !converts;
    under_way.push_back(becomes_sum ? 0 : outputs + (frees ? converted : 0));
  }
  const int in_flight = (is_alone ? 0 : policy.max_reduce_scatters) + 1 +
                        (shape.replicate_size > 1 ? policy.max_all_reduces : 0);
  // Reductions of a microbatch may run in the backward of the next. Outputs of the first become sums.
  const bool repeats = adds_up && shape.microbatches > 2;
  return sums + LargestWindow(under_way, static_cast<size_t>(in_flight), repeats);
}

}  // namespace

absl::StatusOr<MemoryPeaks> LargestPeaks(absl::Span<const GroupMembers> groups, const ShardingPolicy& policy,
                                         const StepShape& shape, bool updates_in_backward) {
  std::vector<int> parents;
  std::vector<size_t> images, gathered;
  std::vector<GradientSizes> gradients;
  MemoryPeaks peaks;
  const bool in_place = shape.residency == Residency::kInPlace;
  const bool node_shared = shape.residency == Residency::kNodeShared;
  for (const GroupMembers& members : groups) {
    WEFT_ASSIGN_OR_RETURN(const GroupSpec spec, SpecifyGroup(members, policy, shape.shard_size, {}, 1));
    parents.push_back(members.parent);
    gradients.push_back(SizesOf(spec, policy, shape));
    const bool master_is_image = spec.is_alone() && spec.is_zero_copy() && !spec.is_cast();
    images.push_back(master_is_image ? 0 : spec.image_bytes());
    gathered.push_back(spec.is_zero_copy() || spec.is_alone() ? 0 : spec.gathered_bytes());
    if (!in_place || spec.is_cast()) peaks.shard_bytes += spec.master_bytes(shape.shard_rank);
    if (in_place) peaks.shard_bytes += spec.image_bytes() / static_cast<size_t>(shape.shard_size);
    if (node_shared && spec.is_cast())
      peaks.shard_bytes += spec.shard_bytes(shape.shard_rank, spec.dtypes.param);
  }
  const std::vector<PassEvent> order = ModuleOrder(parents);
  if (shape.residency == Residency::kPrivate) {
    peaks.image_bytes = PlanImageBytes(order, images, gathered, policy);
  } else if (node_shared) {
    const int holders = shape.ranks_per_domain > 0
                            ? std::min(shape.ranks_per_domain, shape.shard_size)
                            : shape.shard_size / shape.nodes_of_consecutive(shape.shard_size);
    peaks.image_bytes = PlanRegionBytes(order, images, policy) / static_cast<size_t>(holders);
  }
  peaks.gradient_bytes = LargestGradients(gradients, Reversed(order), policy, shape, updates_in_backward);
  peaks.shard_bytes += LargestSums(gradients, policy, shape, updates_in_backward);
  return peaks;
}

}  // namespace weft
