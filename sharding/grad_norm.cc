// The gradient norm over the mesh: the shards of one replica hold every gradient once, so the shard group
// suffices.
#include <algorithm>
#include <cmath>

#include "weft/core/order_free_sum.h"
#include "weft/core/status.h"
#include "weft/sharding/fully_shard.h"

namespace weft {
namespace {

absl::StatusOr<float> MaxOverShards(CommContext& context, const std::vector<ShardView>& shards) {
  float maximum = 0.0F;
  for (const ShardView& shard : shards) {
    if (shard.grad != nullptr) maximum = std::max(maximum, MaxMagnitude(shard.grad, shard.elements()));
  }
  WEFT_RETURN_IF_ERROR(context.AllReduceScalars("grad_norm.max", &maximum, DType::kF32, 1, ReduceOp::kMax));
  return maximum;
}

absl::StatusOr<SquareSum> SumOverShards(CommContext& context, const std::vector<ShardView>& shards,
                                        float maximum) {
  SquareSum total = {};
  for (const ShardView& shard : shards) {
    if (shard.grad == nullptr) continue;
    const SquareSum sum = SumSquares(shard.grad, shard.elements(), maximum);
    for (size_t limb = 0; limb < total.size(); ++limb) total[limb] += sum[limb];
  }
  WEFT_RETURN_IF_ERROR(context.AllReduceScalars("grad_norm.sum", total.data(), DType::kI64,
                                                static_cast<int64_t>(total.size()), ReduceOp::kSum));
  return total;
}

}  // namespace

absl::StatusOr<GradientNorm> ShardedModel::ClipGradNorm(double max_norm) {
  for (const auto& group : groups_) WEFT_RETURN_IF_ERROR(group->CheckGradientsReduced());
  const std::vector<ShardView> shards = Shards();
  WEFT_ASSIGN_OR_RETURN(const float maximum, MaxOverShards(*context_, shards));
  // The same on all ranks, so that all leave out the sum, or none.
  const bool finite = std::isfinite(maximum);
  WEFT_ASSIGN_OR_RETURN(const SquareSum sum,
                        finite ? SumOverShards(*context_, shards, maximum) : SquareSum{});
  const double norm = NormOf(sum, maximum);
  return GradientNorm{norm, static_cast<float>(ClipFactor(norm, max_norm))};
}

}  // namespace weft
