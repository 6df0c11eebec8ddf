// Schemes put together from their levels.
#include <array>
#include <utility>

#include "context_parallel/schemes/two_level_attention.h"
#include "weft/core/status.h"

namespace weft {
namespace {

std::unique_ptr<SequenceAttention> MakeOuter(const ContextScheme& scheme, const LevelLane& lane) {
  if (scheme.has_ring()) {
    return scheme.rotation == RingRotation::kShift ? MakeShiftedRingAttention(lane)
                                                   : MakeGatheredRingAttention(lane);
  }
  return scheme.balance == LoadBalance::kQueryExchange ? MakeBalancedGatherAttention(lane)
                                                       : MakeGatherAttention(lane);
}

// Every step-th rank of the context group from `first`, `count` of them; this rank is among them.
ProcessGroup LevelGroup(const ProcessGroup& context, std::string_view level, int first, int step, int count) {
  ProcessGroup group{.name = absl::StrCat(context.name, "_", ToAbsl(level)), .ranks = {}, .group_rank = 0};
  for (int i = 0; i < count; ++i) {
    const int member = first + i * step;
    if (member == context.group_rank) group.group_rank = i;
    group.ranks.push_back(context.ranks[static_cast<size_t>(member)]);
  }
  return group;
}

}  // namespace

std::string_view Name(AttentionRole role) {
  constexpr std::array<std::string_view, 3> kNames = {"q", "k", "v"};
  return kNames[static_cast<size_t>(role)];
}

absl::StatusOr<std::unique_ptr<AttentionParallel>> MakeAttentionParallel(const ContextScheme& scheme,
                                                                         CommEngine& engine, BufferPool& pool,
                                                                         const ProcessGroup& context) {
  const int ranks = context.size();
  WEFT_RETURN_IF_ERROR(scheme.Validate(ranks, AttentionMask{}));
  const int inner_size = scheme.inner(ranks);
  const int outer_size = scheme.outer_ranks(ranks);
  const int inner_rank = context.group_rank % inner_size;
  std::optional<LevelLane> inner;
  if (inner_size > 1) {
    const ProcessGroup group = LevelGroup(context, "heads", context.group_rank - inner_rank, 1, inner_size);
    WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.AddLane(group, LanePurpose::kContext));
    inner = LevelLane{&engine, &pool, lane};
  }
  std::unique_ptr<SequenceAttention> outer = MakeLocalAttention(pool);
  if (outer_size > 1) {
    const ProcessGroup group = LevelGroup(context, "sequence", inner_rank, inner_size, outer_size);
    WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.AddLane(group, LanePurpose::kContext));
    outer = MakeOuter(scheme, LevelLane{&engine, &pool, lane});
  }
  return std::make_unique<TwoLevelAttention>(pool, ranks, context.group_rank, inner, std::move(outer));
}

}  // namespace weft
