// Gradient norms over the mesh. Every gradient counts once.
//
// Each replica takes a part of the gradients that all replicas hold: the values are many, and the numbers
// that ranks then exchange are few. Two kinds count whole on each rank: parameters without replicas, which
// may differ from rank to rank, and elements that a rank alone updates where replicas share the optimizer.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "sharding/group/param_group.h"
#include "sharding/model/model_scalars.h"
#include "weft/core/reproducible_sum.h"
#include "weft/core/status.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {
namespace {

using Gradients = absl::Span<const float>;

Gradients PartOf(Gradients all, const ProcessGroup& replicas) {
  const auto count = static_cast<size_t>(replicas.size());
  const auto place = static_cast<size_t>(replicas.group_rank);
  const size_t begin = all.size() * place / count;
  return all.subspan(begin, all.size() * (place + 1) / count - begin);
}

// The gradients of each set, in parts.
using Parts = std::vector<std::vector<Gradients>>;

absl::StatusOr<std::vector<double>> MaximaOf(const Parts& sets, ModelScalars& scalars) {
  std::vector<float> maxima;
  for (const std::vector<Gradients>& parts : sets) {
    float& maximum = maxima.emplace_back(0.0F);
    for (const Gradients part : parts) {
      maximum = std::max(maximum, MaxMagnitude(part.data(), static_cast<int64_t>(part.size())));
    }
  }
  WEFT_RETURN_IF_ERROR(
      scalars.AllReduce("grad_norm.max", maxima.data(), DType::kF32, std::ssize(maxima), ReduceOp::kMax));
  return std::vector<double>(maxima.begin(), maxima.end());
}

ReproducibleSum SumOf(const std::vector<Gradients>& parts, NormType type) {
  ReproducibleSum sum;
  for (const Gradients part : parts) {
    const auto count = static_cast<int64_t>(part.size());
    sum += type == NormType::kOne ? SumMagnitudes(part.data(), count) : SumSquares(part.data(), count);
  }
  return sum;
}

absl::StatusOr<std::vector<double>> NormsOf(const Parts& sets, NormType type, ModelScalars& scalars) {
  if (type == NormType::kInfinity) return MaximaOf(sets, scalars);
  std::vector<ReproducibleSum> sums;
  sums.reserve(sets.size());
  for (const std::vector<Gradients>& parts : sets) sums.push_back(SumOf(parts, type));
  static_assert(sizeof(ReproducibleSum) == sizeof(ReproducibleSum::numbers));
  constexpr int64_t kNumbers = sizeof(ReproducibleSum) / sizeof(int64_t);
  WEFT_RETURN_IF_ERROR(scalars.AllReduce("grad_norm.sum", sums.data(), DType::kI64,
                                         kNumbers * std::ssize(sums), ReduceOp::kSum));
  std::vector<double> norms;
  norms.reserve(sums.size());
  for (const ReproducibleSum& sum : sums) {
    norms.push_back(type == NormType::kOne ? OneNormOf(sum) : TwoNormOf(sum));
  }
  return norms;
}

// Index of the first set that matches, or their number.
size_t SetOf(const Parameter& parameter, absl::Span<const ClipSet> sets) {
  const auto* found =
      std::find_if(sets.begin(), sets.end(), [&](const ClipSet& set) { return set.matches(parameter); });
  return static_cast<size_t>(found - sets.begin());
}

}  // namespace

std::vector<std::vector<absl::Span<const float>>> ShardedGroups::GradientsToCount(
    absl::Span<const ClipSet> sets) const {
  Parts counted(sets.size());
  for (const auto& group : groups_) {
    for (const ShardView& shard : group->Shards()) {
      const size_t set = SetOf(*shard.parameter, sets);
      if (shard.grad == nullptr || set == sets.size()) continue;
      const Gradients all(shard.grad, static_cast<size_t>(shard.elements()));
      const auto parameter = static_cast<size_t>(shard.piece.parameter);
      const int bucket = group->layout().parameters()[parameter].replicate_bucket;
      const bool is_alone = context_->lanes().shards_optimizer_over_replicas();
      counted[set].push_back(is_alone ? all : PartOf(all, context_->lanes().replicate_group(bucket)));
    }
  }
  return counted;
}

absl::StatusOr<std::vector<GradientNorm>> ShardedGroups::ClipGradNorms(absl::Span<const ClipSet> sets,
                                                                       NormType type) {
  WEFT_RETURN_IF_ERROR(CheckGradientsReduced());
  WEFT_ASSIGN_OR_RETURN(const std::vector<double> norms, NormsOf(GradientsToCount(sets), type, *scalars_));
  std::vector<GradientNorm> clipped;
  clipped.reserve(norms.size());
  for (size_t set = 0; set < norms.size(); ++set) {
    clipped.push_back({norms[set], static_cast<float>(ClipFactor(norms[set], sets[set].max_norm))});
  }
  return clipped;
}

}  // namespace weft
