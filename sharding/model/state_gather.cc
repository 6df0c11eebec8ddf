// Gathering of whole arrays from the parts that ranks hold.
#include <algorithm>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/container/flat_hash_map.h>

#include "sharding/group/param_group.h"
#include "sharding/model/model_scalars.h"
#include "sharding/model/sharded_groups_parts.h"
#include "sharding/pipeline/gather_values.h"
#include "weft/core/status.h"
#include "weft/sharding/sharded_groups.h"
#include "weft/sharding/state_dict.h"

namespace weft {
namespace {

class ArrayGatherer {
 public:
  ArrayGatherer(CommContext& context, absl::Span<const ShardView> shards, StateTarget target,
                const ArrayConsumer& consume)
      : context_(context), first_only_(target == StateTarget::kRankZero), consume_(consume) {
    for (const ShardView& shard : shards) shards_[shard.parameter].push_back(&shard);
  }

  // By parameter of the groups, end to end: true if this rank has a view of it.
  // Errors: kInvalidArgument (a view of another parameter).
  absl::StatusOr<std::vector<bool>> Viewed(absl::Span<const std::unique_ptr<ParamGroup>> groups) const {
    std::vector<bool> viewed;
    for (const auto& group : groups) {
      for (const auto& parameter : group->parameters()) viewed.push_back(shards_.contains(parameter.get()));
    }
    if (absl::c_count(viewed, true) == std::ssize(shards_)) return viewed;
    return absl::InvalidArgumentError(
        absl::StrCat("shards of other parameters than those of the model sharded at '",
                     groups.front()->name(), "': pass the model's own, or an optimizer's of them"));
  }

  // `selected`: the parameters to gather, the same on all ranks.
  absl::Status Gather(const ParamGroup& group, const std::vector<bool>& selected) {
    if (!TakesPart(group)) return absl::OkStatus();
    const int ranks = group.lanes().shard_group().size();
    std::vector<Parts> parts(group.parameters().size(), Parts(static_cast<size_t>(ranks)));
    for (int rank = 0; rank < ranks; ++rank) {
      for (const ShardPiece& piece : group.layout().Pieces(rank)) {
        parts[static_cast<size_t>(piece.parameter)][static_cast<size_t>(rank)] = piece;
      }
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      if (selected[i]) WEFT_RETURN_IF_ERROR(GatherArray(group, i, parts[i]));
    }
    return absl::OkStatus();
  }

  // First error of the consumer. This rank goes on nevertheless, like its peers.
  const absl::Status& consumed() const { return consumed_; }

 private:
  using Parts = std::vector<ShardPiece>;  // By shard rank; empty if it holds nothing.

  // Rank 0 needs the first replica's shard group only.
  static bool IsOfFirstReplica(const ParamGroup& group) {
    return group.lanes().replicate_group(0).group_rank == 0;
  }
  // All replicas that share the optimizer exchange their updates.
  bool TakesPart(const ParamGroup& group) const {
    return !first_only_ || group.lanes().shards_optimizer_over_replicas() || IsOfFirstReplica(group);
  }

  absl::Status GatherArray(const ParamGroup& group, size_t index, const Parts& parts) {
    const Parameter& parameter = *group.parameters()[index];
    const bool receives =
        !first_only_ || (IsOfFirstReplica(group) && group.lanes().shard_group().group_rank == 0);
    if (parameter.elements() == 0) {
      if (receives) Consume(parameter, {});
      return absl::OkStatus();
    }
    const ShardPiece& own_part = parts[static_cast<size_t>(group.lanes().shard_group().group_rank)];
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> own, OwnPart(group, index, own_part));
    if (first_only_ && !IsOfFirstReplica(group)) return absl::OkStatus();
    std::vector<int64_t> counts;
    for (const ShardPiece& part : parts) counts.push_back(part.elements());
    std::vector<float> values(receives ? static_cast<size_t>(parameter.elements()) : 0);
    WEFT_RETURN_IF_ERROR(GatherShardValues(context_, group.lanes(), parameter.name, own.data(), values.data(),
                                           counts, first_only_));
    if (receives) Consume(parameter, InOrder(std::move(values), parts));
    return absl::OkStatus();
  }

  void Consume(const Parameter& parameter, absl::Span<const float> values) {
    if (consumed_.ok()) consumed_ = consume_(parameter, values);
  }

  // This rank's part of a parameter, with the elements that its replicas update.
  absl::StatusOr<std::vector<float>> OwnPart(const ParamGroup& group, size_t index, const ShardPiece& part) {
    const Parameter& parameter = *group.parameters()[index];
    const FlatParameter& placed = group.layout().parameters()[index];
    if (!group.lanes().shards_optimizer_over_replicas() || !placed.trainable) {
      return OwnValues(parameter, part.elements());
    }
    const auto slice = absl::c_find_if(group.slices(), [&](const ReplicaSlice& candidate) {
      return candidate.bucket == placed.replicate_bucket;
    });
    const ProcessGroup& replicas = group.lanes().replicate_group(slice->bucket);
    std::vector<int64_t> counts(static_cast<size_t>(replicas.size()));
    for (int rank = 0; rank < replicas.size(); ++rank) {
      for (const ShardPiece& piece : CutPiece(part, slice->PartOf(rank))) {
        counts[static_cast<size_t>(rank)] += piece.elements();
      }
    }
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> own,
                          OwnValues(parameter, counts[static_cast<size_t>(replicas.group_rank)]));
    std::vector<float> values(static_cast<size_t>(part.elements()));
    WEFT_RETURN_IF_ERROR(
        GatherReplicaValues(context_, parameter.name, slice->bucket, own.data(), values.data(), counts));
    return values;
  }

  // Values of all views of a parameter, end to end.
  absl::StatusOr<std::vector<float>> OwnValues(const Parameter& parameter, int64_t expected) const {
    std::vector<float> values;
    if (const auto found = shards_.find(&parameter); found != shards_.end()) {
      for (const ShardView* view : found->second) {
        values.insert(values.end(), view->data, view->data + view->elements());
      }
    }
    if (static_cast<int64_t>(values.size()) == expected) return values;
    return absl::InvalidArgumentError(absl::StrCat("shards hold ", values.size(), " elements of '",
                                                   parameter.name, "' instead of ", expected,
                                                   ": pass the model's own, or an optimizer's of them"));
  }

  // Puts the parts in row-major order. Parts of one run each are in order already.
  static std::vector<float> InOrder(std::vector<float> gathered, const Parts& parts) {
    if (std::all_of(parts.begin(), parts.end(), [](const ShardPiece& part) { return part.runs <= 1; })) {
      return gathered;
    }
    std::vector<float> values(gathered.size());
    const float* from = gathered.data();
    for (const ShardPiece& part : parts) {
      for (int64_t run = 0; run < part.runs; ++run, from += part.run_length) {
        std::copy_n(from, part.run_length, values.data() + part.start + run * part.run_stride);
      }
    }
    return values;
  }

  CommContext& context_;
  const bool first_only_;
  const ArrayConsumer& consume_;
  absl::flat_hash_map<const Parameter*, std::vector<const ShardView*>> shards_;
  absl::Status consumed_;
};

// Selects the parameters without elements too, of which no rank has a view, if all others are selected.
// `selected`: by parameter of the groups, end to end.
void SelectEmptyParameters(absl::Span<const std::unique_ptr<ParamGroup>> groups,
                           std::vector<bool>& selected) {
  std::vector<size_t> empty;
  size_t number = 0;
  for (const auto& group : groups) {
    for (const auto& parameter : group->parameters()) {
      if (parameter->elements() == 0) {
        empty.push_back(number);
      } else if (!selected[number]) {
        return;
      }
      ++number;
    }
  }
  for (const size_t parameter : empty) selected[parameter] = true;
}

}  // namespace

absl::Status GatherFullState(ShardedModel& model, absl::Span<const ShardView> shards, StateTarget target,
                             const ArrayConsumer& consume) {
  const ShardedGroupsParts parts(model.sharded_groups());
  CommContext& context = parts.context;
  ArrayGatherer gatherer(context, shards, target, consume);
  absl::StatusOr<std::vector<bool>> viewed = gatherer.Viewed(parts.groups);
  if (!viewed.ok()) return context.state().Fail(viewed.status());
  WEFT_RETURN_IF_ERROR(parts.scalars.AnyOnAllRanks("parameters to gather", *viewed));
  SelectEmptyParameters(parts.groups, *viewed);
  auto next = viewed->begin();
  for (const auto& group : parts.groups) {
    const auto first = std::exchange(next, next + std::ssize(group->parameters()));
    if (const absl::Status gathered = gatherer.Gather(*group, {first, next}); !gathered.ok())
      return context.state().Fail(gathered);
  }
  return gatherer.consumed();
}

}  // namespace weft
