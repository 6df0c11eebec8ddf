#include "weft/sharding/byte_formulas.h"

namespace weft {
namespace {

// What a rank's peers bring to it of `bytes` that are spread evenly over a group; a cut that is uneven by
// less than a cache line is rounded down, as the engine does.
int64_t FromPeers(int64_t bytes, int group_size) { return bytes * (group_size - 1) / group_size; }

int64_t CopiedByUnshard(const FlatLayout& layout, const ShardingPolicy& policy, int shard_size) {
  const auto size = static_cast<int64_t>(SizeOf(policy.param_dtype));
  const bool casts = policy.param_dtype != DType::kF32;
  if (policy.zero_copy) return casts ? layout.shard_elements() * size : 0;
  // In a shard group of one the copy out of the master casts as well.
  const int64_t cast_bytes = casts && shard_size > 1 ? layout.shard_elements() * size : 0;
  return layout.parameter_elements() * size + cast_bytes;
}

int64_t CopiedByReduction(const FlatLayout& layout, const ShardingPolicy& policy) {
  const auto size = static_cast<int64_t>(SizeOf(policy.reduce_dtype));
  const bool casts = policy.gradient_dtype() != policy.reduce_dtype;
  const bool widens = policy.reduce_dtype != DType::kF32;
  const int64_t narrowed = casts ? layout.gathered_elements() * size : 0;
  const int64_t copied_in = policy.zero_copy ? narrowed : layout.parameter_elements() * size;
  return copied_in + (widens ? layout.shard_elements() * static_cast<int64_t>(sizeof(float)) : 0);
}

}  // namespace

StepCosts& StepCosts::operator+=(const StepCosts& other) {
  all_gathers += other.all_gathers;
  reduce_scatters += other.reduce_scatters;
  all_reduces += other.all_reduces;
  all_gather_bytes += other.all_gather_bytes;
  reduce_scatter_bytes += other.reduce_scatter_bytes;
  all_reduce_bytes += other.all_reduce_bytes;
  copied_bytes += other.copied_bytes;
  return *this;
}

StepCosts CostsOfGroup(const FlatLayout& layout, bool is_root, const ShardingPolicy& policy,
                       const StepShape& shape) {
  StepCosts costs;
  if (layout.gathered_elements() == 0) return costs;
  const bool regathered = is_root ? policy.reshard_root_after_forward : policy.reshard_after_forward;
  const int64_t unshards = int64_t{shape.microbatches} * (regathered ? 2 : 1);
  const int64_t weight_bytes = layout.gathered_elements() * static_cast<int64_t>(SizeOf(policy.param_dtype));
  const int64_t gradient_bytes =
      layout.gathered_elements() * static_cast<int64_t>(SizeOf(policy.reduce_dtype));
  if (shape.shard_size > 1) {
    costs.all_gathers = unshards;
    costs.reduce_scatters = 1;
    costs.all_gather_bytes = unshards * FromPeers(weight_bytes, shape.shard_size);
    costs.reduce_scatter_bytes = FromPeers(gradient_bytes, shape.shard_size);
  }
  if (shape.replicate_size > 1) {
    costs.all_reduces = 1;
    costs.all_reduce_bytes = FromPeers(2 * gradient_bytes / shape.shard_size, shape.replicate_size);
  }
  costs.copied_bytes =
      unshards * CopiedByUnshard(layout, policy, shape.shard_size) + CopiedByReduction(layout, policy);
  return costs;
}

}  // namespace weft
