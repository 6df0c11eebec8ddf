// Gradient norms over the mesh. Every gradient counts once.
//
// Each replica takes a part of the gradients that all replicas hold: the values are many, and the numbers
// that ranks then exchange are few. Two kinds count whole on each rank: parameters without replicas, which
// may differ from rank to rank, and elements that a rank alone updates where replicas share the optimizer.
#include "sharding/model/grad_norm.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "sharding/group/param_group.h"
#include "sharding/model/model_scalars.h"
#include "weft/core/reproducible_sum.h"
#include "weft/core/status.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {
namespace {

// Gradients of one piece, in the master dtype of its group.
struct Gradients {
  const std::byte* data;
  DType dtype;
  int64_t count;

  // Calls `function` with the values in their type.
  template <typename Function>
  auto With(Function function) const {
    return dtype == DType::kF64 ? function(reinterpret_cast<const double*>(data))
                                : function(reinterpret_cast<const float*>(data));
  }
};

Gradients PartOf(const Gradients& all, const ProcessGroup& replicas) {
  const int64_t count = replicas.size();
  const int64_t begin = all.count * replicas.group_rank / count;
  const int64_t end = all.count * (replicas.group_rank + 1) / count;
  return {all.data + BytesOf(begin, all.dtype), all.dtype, end - begin};
}

// The gradients of each set, in parts.
using Parts = std::vector<std::vector<Gradients>>;

absl::StatusOr<std::vector<double>> MaximaOf(const Parts& sets, ModelScalars& scalars) {
  std::vector<double> maxima;
  for (const std::vector<Gradients>& parts : sets) {
    double& maximum = maxima.emplace_back(0.0);
    for (const Gradients& part : parts) {
      maximum = std::max(
          maximum, part.With([&](const auto* values) -> double { return MaxMagnitude(values, part.count); }));
    }
  }
  WEFT_RETURN_IF_ERROR(
      scalars.AllReduce("grad_norm.max", maxima.data(), DType::kF64, std::ssize(maxima), ReduceOp::kMax));
  return maxima;
}

ReproducibleSum SumOf(const std::vector<Gradients>& parts, NormType type, double unit) {
  ReproducibleSum sum;
  for (const Gradients& part : parts) {
    sum += part.With([&](const auto* values) {
      return type == NormType::kOne ? SumMagnitudes(values, part.count, unit)
                                    : SumSquares(values, part.count, unit);
    });
  }
  return sum;
}

absl::Status AddOfAllRanks(std::vector<ReproducibleSum>& sums, ModelScalars& scalars) {
  static_assert(sizeof(ReproducibleSum) == sizeof(ReproducibleSum::numbers));
  constexpr int64_t kNumbers = sizeof(ReproducibleSum) / sizeof(int64_t);
  return scalars.AllReduce("grad_norm.sum", sums.data(), DType::kI64, kNumbers * std::ssize(sums),
                           ReduceOp::kSum);
}

// `has_doubles`: whether any rank has gradients in f64.
absl::StatusOr<std::vector<double>> NormsOf(const Parts& sets, NormType type, bool has_doubles,
                                            ModelScalars& scalars) {
  if (type == NormType::kInfinity) return MaximaOf(sets, scalars);
  std::vector<double> units(sets.size(), 1.0);
  if (has_doubles) {
    WEFT_ASSIGN_OR_RETURN(units, MaximaOf(sets, scalars));
    std::transform(units.begin(), units.end(), units.begin(), UnitOf);
  }
  std::vector<ReproducibleSum> sums;
  sums.reserve(sets.size());
  for (size_t set = 0; set < sets.size(); ++set) sums.push_back(SumOf(sets[set], type, units[set]));
  WEFT_RETURN_IF_ERROR(AddOfAllRanks(sums, scalars));
  std::vector<double> norms;
  norms.reserve(sums.size());
  for (size_t set = 0; set < sums.size(); ++set) {
    norms.push_back(type == NormType::kOne ? OneNormOf(sums[set], units[set])
                                           : TwoNormOf(sums[set], units[set]));
  }
  return norms;
}

// Index of the first set that matches, or their number.
size_t SetOf(const Parameter& parameter, absl::Span<const ClipSet> sets) {
  const auto* found =
      std::find_if(sets.begin(), sets.end(), [&](const ClipSet& set) { return set.matches(parameter); });
  return static_cast<size_t>(found - sets.begin());
}

// Adds this rank's gradients of a group, without those that another replica counts, by set.
void AddGradientsToCount(const ParamGroup& group, absl::Span<const ClipSet> sets,
                         const ExternalGradients& external, Parts& counted) {
  const PipelineLanes& lanes = group.lanes();
  for (const MasterView& shard : group.Masters()) {
    const size_t set = SetOf(*shard.parameter, sets);
    const auto other = external.find(shard.parameter);
    const std::byte* gradient = other == external.end() ? shard.grad : other->second;
    if (gradient == nullptr || set == sets.size()) continue;
    const Gradients all{gradient, group.dtypes().master, shard.elements()};
    const auto parameter = static_cast<size_t>(shard.piece.parameter);
    const int bucket = group.layout().parameters()[parameter].replicate_bucket;
    const bool is_alone = lanes.shards_optimizer_over_replicas();
    counted[set].push_back(is_alone ? all : PartOf(all, lanes.replicate_group(bucket)));
  }
}

absl::Status CheckLimits(absl::Span<const ClipSet> sets) {
  for (const ClipSet& set : sets) {
    if (set.max_norm >= 0) continue;  // False for NaN.
    return absl::InvalidArgumentError(absl::StrCat("max_norm is ", set.max_norm,
                                                   ": give the largest norm that gradients may have, 0 or "
                                                   "more, or infinity (kNoClipping) to clip nothing"));
  }
  return absl::OkStatus();
}

std::vector<GradientNorm> Clipped(const std::vector<double>& norms, absl::Span<const ClipSet> sets) {
  std::vector<GradientNorm> clipped;
  clipped.reserve(norms.size());
  for (size_t set = 0; set < norms.size(); ++set) {
    clipped.push_back({norms[set], ClipFactor(norms[set], sets[set].max_norm)});
  }
  return clipped;
}

}  // namespace

void AddSquares(const ParamGroup& group, absl::Span<const ClipSet> sets,
                std::vector<ReproducibleSum>& squares) {
  Parts counted(sets.size());
  AddGradientsToCount(group, sets, {}, counted);
  for (size_t set = 0; set < sets.size(); ++set) squares[set] += SumOf(counted[set], NormType::kTwo, 1.0);
}

absl::StatusOr<std::vector<GradientNorm>> NormsOfSquares(std::vector<ReproducibleSum> squares,
                                                         absl::Span<const ClipSet> sets,
                                                         ModelScalars& scalars) {
  WEFT_RETURN_IF_ERROR(AddOfAllRanks(squares, scalars));
  std::vector<double> norms;
  norms.reserve(squares.size());
  for (const ReproducibleSum& sum : squares) norms.push_back(TwoNormOf(sum));
  return Clipped(norms, sets);
}

absl::StatusOr<std::vector<GradientNorm>> ShardedGroups::ClipGradNorms(absl::Span<const ClipSet> sets,
                                                                       NormType type,
                                                                       const ExternalGradients& external) {
  WEFT_RETURN_IF_ERROR(CheckLimits(sets));
  WEFT_RETURN_IF_ERROR(CheckGradientsReduced());
  Parts counted(sets.size());
  for (const auto& group : groups_) AddGradientsToCount(*group, sets, external, counted);
  const bool has_doubles = std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group->dtypes().master == DType::kF64;
  });
  WEFT_ASSIGN_OR_RETURN(const std::vector<double> norms, NormsOf(counted, type, has_doubles, *scalars_));
  return Clipped(norms, sets);
}

}  // namespace weft
