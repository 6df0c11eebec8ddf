#include "src/train/plan/context_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "weft/context_parallel/choose_scheme.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// The schemes that the flags allow.
std::vector<ContextScheme> AllowedSchemes(const ContextOptions& options, const AttentionShape& shape,
                                          int ranks) {
  const LoadBalance balance = options.load_balance.value_or(LoadBalance::kHeadTail);
  if (shape.is_sparse()) return SparseSchemes(balance);
  if (options.scheme == CpScheme::kRing) {
    return {ContextScheme::Ring(options.ring_rotate.value_or(RingRotation::kShift), balance)};
  }
  std::vector<ContextScheme> schemes = SchemesByDegree(ranks, balance);
  const auto excluded = [&](const ContextScheme& scheme) {
    if (options.ulysses_degree.value_or(scheme.inner_ranks(ranks)) != scheme.inner_ranks(ranks)) return true;
    // Ulysses has no balance, so a requested balance excludes it even if it moves fewer bytes.
    if (options.load_balance.value_or(scheme.balance) != scheme.balance) return true;
    switch (options.scheme) {
      case CpScheme::kUlysses:
        return scheme.kind(ranks) != SchemeKind::kUlysses;
      case CpScheme::kGather:
        return scheme.kind(ranks) != SchemeKind::kGather;
      case CpScheme::kHybrid:
        return scheme.kind(ranks) != SchemeKind::kHybrid;
      case CpScheme::kRing:
      case CpScheme::kAuto:
        return false;
    }
    return false;
  };
  schemes.erase(std::remove_if(schemes.begin(), schemes.end(), excluded), schemes.end());
  return schemes;
}

// The flag that leaves only one scheme.
std::string_view OnlyChoiceReason(const ContextOptions& options, const AttentionShape& shape) {
  if (options.scheme != CpScheme::kAuto) return "--cp-scheme";
  if (shape.is_sparse()) return "--attention dsa";
  return options.ulysses_degree.has_value() ? "--ulysses-degree" : "--load-balance";
}

}  // namespace

AttentionShape ShapeOfAttention(const LlamaConfig& model, int64_t sequences, DType dtype) {
  AttentionShape shape;
  shape.batch = sequences;
  shape.heads = model.heads;
  shape.kv_heads = model.kv_heads;
  shape.head_dim = shape.value_dim = model.head_dim;
  shape.dtype = dtype;
  if (model.sparse_attention) shape.index_dim = model.sparse_attention->index_dim;
  return shape;
}

absl::StatusOr<ContextPlan> PlanContext(const ContextOptions& options, const AttentionShape& shape,
                                        const AttentionMask& mask, int64_t seq_len) {
  ContextPlan plan;
  plan.size = static_cast<int>(options.size);
  if (plan.size == 1) return plan;
  std::vector<ContextScheme> schemes = AllowedSchemes(options, shape, plan.size);
  for (ContextScheme& scheme : schemes) {
    if (scheme.kind(plan.size) == SchemeKind::kHybrid) scheme.ring_rotation = options.ring_rotate;
  }
  WEFT_ASSIGN_OR_RETURN(SchemeChoice choice, ChooseAmong(schemes, shape, mask, {seq_len}, plan.size));
  plan.scheme = choice.scheme;
  plan.reason =
      schemes.size() == 1 ? std::string(OnlyChoiceReason(options, shape)) : std::move(choice.reason);
  return plan;
}

}  // namespace weft
