// Gradient norm over the mesh. Every gradient counts once.
//
// Each replica takes a part of the gradients that all replicas hold: the values are many, and the numbers
// that ranks then exchange are few. Two kinds count whole on each rank: parameters without replicas, which
// may differ from rank to rank, and elements that a rank alone updates where replicas share the optimizer.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "sharding/model/sharded_groups.h"
#include "weft/core/reproducible_sum.h"
#include "weft/core/status.h"

namespace weft {
namespace {

using Gradients = absl::Span<const float>;

Gradients PartOf(Gradients all, const ProcessGroup& replicas) {
  const auto count = static_cast<size_t>(replicas.size());
  const auto place = static_cast<size_t>(replicas.group_rank);
  const size_t begin = all.size() * place / count;
  return all.subspan(begin, all.size() * (place + 1) / count - begin);
}

absl::StatusOr<double> MaximumOfParts(const std::vector<Gradients>& parts, ModelScalars& scalars) {
  float maximum = 0.0F;
  for (const Gradients part : parts) {
    maximum = std::max(maximum, MaxMagnitude(part.data(), static_cast<int64_t>(part.size())));
  }
  WEFT_RETURN_IF_ERROR(scalars.AllReduce("grad_norm.max", &maximum, DType::kF32, 1, ReduceOp::kMax));
  return maximum;
}

absl::StatusOr<double> NormOfParts(const std::vector<Gradients>& parts, NormType type,
                                   ModelScalars& scalars) {
  if (type == NormType::kInfinity) return MaximumOfParts(parts, scalars);
  ReproducibleSum sum;
  for (const Gradients part : parts) {
    const auto count = static_cast<int64_t>(part.size());
    sum += type == NormType::kOne ? SumMagnitudes(part.data(), count) : SumSquares(part.data(), count);
  }
  WEFT_RETURN_IF_ERROR(scalars.AllReduce("grad_norm.sum", sum.numbers.data(), DType::kI64,
                                         std::ssize(sum.numbers), ReduceOp::kSum));
  return type == NormType::kOne ? OneNormOf(sum) : TwoNormOf(sum);
}

}  // namespace

std::vector<absl::Span<const float>> ShardedGroups::GradientsToCount() const {
  std::vector<Gradients> counted;
  for (const auto& group : groups_) {
    for (const ShardView& shard : group->Shards()) {
      if (shard.grad == nullptr) continue;
      const Gradients all(shard.grad, static_cast<size_t>(shard.elements()));
      const auto parameter = static_cast<size_t>(shard.piece.parameter);
      const int bucket = group->layout().parameters()[parameter].replicate_bucket;
      const bool is_alone = context_->lanes().shards_optimizer_over_replicas();
      counted.push_back(is_alone ? all : PartOf(all, context_->lanes().replicate_group(bucket)));
    }
  }
  return counted;
}

absl::StatusOr<GradientNorm> ShardedGroups::ClipGradNorm(double max_norm, NormType type) {
  WEFT_RETURN_IF_ERROR(CheckGradientsReduced());
  WEFT_ASSIGN_OR_RETURN(const double norm, NormOfParts(GradientsToCount(), type, *scalars_));
  return GradientNorm{norm, static_cast<float>(ClipFactor(norm, max_norm))};
}

}  // namespace weft
