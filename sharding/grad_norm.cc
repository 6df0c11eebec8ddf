// The gradient norm over the mesh. Usually the shards of one replica hold every gradient once, so the shard
// group suffices. With replicate groups of their own, parameters may differ between replicas: then all ranks
// take part, and of the replicas of a parameter the first one alone counts. With the optimizer sharded over
// replicas all take part, and all count, as each has a part of its own.
#include <algorithm>
#include <cmath>
#include <functional>

#include "sharding/model_scalars.h"
#include "weft/core/order_free_sum.h"
#include "weft/core/status.h"
#include "weft/sharding/fully_shard.h"

namespace weft {
namespace {

using ScalarReduction = std::function<absl::Status(const std::string&, void*, DType, int64_t, ReduceOp)>;

bool Counts(const CommContext& context, const ParamGroup& group, const ShardView& shard) {
  const FlatParameter& parameter = group.layout().parameters()[static_cast<size_t>(shard.piece.parameter)];
  return context.shards_optimizer_over_replicas() ||
         context.replicate_group(parameter.replicate_bucket).group_rank == 0;
}

OrderFreeSum SumOfShards(const std::vector<ShardView>& shards, NormType type, float maximum) {
  OrderFreeSum total = {};
  for (const ShardView& shard : shards) {
    const OrderFreeSum sum = type == NormType::kOne ? SumMagnitudes(shard.grad, shard.elements(), maximum)
                                                    : SumSquares(shard.grad, shard.elements(), maximum);
    for (size_t limb = 0; limb < total.size(); ++limb) total[limb] += sum[limb];
  }
  return total;
}

absl::StatusOr<double> NormOfShards(const std::vector<ShardView>& shards, NormType type,
                                    const ScalarReduction& reduce) {
  float maximum = 0.0F;
  for (const ShardView& shard : shards) {
    maximum = std::max(maximum, MaxMagnitude(shard.grad, shard.elements()));
  }
  WEFT_RETURN_IF_ERROR(reduce("grad_norm.max", &maximum, DType::kF32, 1, ReduceOp::kMax));
  // The same on all ranks, so that all leave out the sum, or none.
  if (type == NormType::kInfinity || !std::isfinite(maximum)) return maximum;
  OrderFreeSum sum = SumOfShards(shards, type, maximum);
  WEFT_RETURN_IF_ERROR(reduce("grad_norm.sum", sum.data(), DType::kI64, sum.size(), ReduceOp::kSum));
  return type == NormType::kOne ? OneNormOf(sum, maximum) : NormOf(sum, maximum);
}

}  // namespace

std::vector<ShardView> ShardedModel::GradientsToCount(bool everywhere) const {
  std::vector<ShardView> counted;
  for (const auto& group : groups_) {
    for (const ShardView& shard : group->Shards()) {
      if (shard.grad != nullptr && (!everywhere || Counts(*context_, *group, shard)))
        counted.push_back(shard);
    }
  }
  return counted;
}

absl::StatusOr<GradientNorm> ShardedModel::ClipGradNorm(double max_norm, NormType type) {
  for (const auto& group : groups_) WEFT_RETURN_IF_ERROR(group->CheckGradientsReduced());
  const bool everywhere = context_->bucket_count() > 1 || context_->shards_optimizer_over_replicas();
  const ScalarReduction reduce = [&](const std::string& label, void* values, DType dtype, int64_t count,
                                     ReduceOp op) {
    return everywhere ? scalars_->AllReduce(label, values, dtype, count, op)
                      : context_->AllReduceScalars(label, values, dtype, count, op);
  };
  WEFT_ASSIGN_OR_RETURN(const double norm, NormOfShards(GradientsToCount(everywhere), type, reduce));
  return GradientNorm{norm, static_cast<float>(ClipFactor(norm, max_norm))};
}

}  // namespace weft
