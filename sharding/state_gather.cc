// Whole arrays from the parts that ranks hold.
#include <algorithm>
#include <utility>

#include <absl/container/flat_hash_map.h>

#include "weft/core/status.h"
#include "weft/sharding/state_dict.h"

namespace weft {
namespace {

class ArrayGatherer {
 public:
  ArrayGatherer(CommContext& context, absl::Span<const ShardView> shards, StateTarget target,
                const ArrayConsumer& consume)
      : context_(context), first_alone_(target == StateTarget::kRankZero), consume_(consume) {
    for (const ShardView& shard : shards) shards_.emplace(shard.parameter, &shard);
  }

  absl::Status Gather(const ParamGroup& group) {
    const int ranks = context_.shard_group().size();
    std::vector<Parts> parts(group.parameters().size(), Parts(static_cast<size_t>(ranks)));
    for (int rank = 0; rank < ranks; ++rank) {
      for (const ShardPiece& piece : group.layout().Pieces(rank)) {
        parts[static_cast<size_t>(piece.parameter)][static_cast<size_t>(rank)] = piece;
      }
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      WEFT_RETURN_IF_ERROR(GatherArray(*group.parameters()[i], parts[i]));
    }
    return absl::OkStatus();
  }

  // What the consumer said: the other ranks go on meanwhile, and so does this one.
  const absl::Status& consumed() const { return consumed_; }

 private:
  using Parts = std::vector<ShardPiece>;  // By shard rank; empty where it holds nothing.

  absl::Status GatherArray(const Parameter& parameter, const Parts& parts) {
    const bool receives = !first_alone_ || context_.shard_group().group_rank == 0;
    std::vector<int64_t> counts;
    for (const ShardPiece& part : parts) counts.push_back(part.elements());
    WEFT_ASSIGN_OR_RETURN(const float* own, OwnPart(parameter, counts));
    std::vector<float> values(receives ? static_cast<size_t>(parameter.elements()) : 0);
    WEFT_RETURN_IF_ERROR(context_.GatherValues(parameter.name, own, values.data(), counts, first_alone_));
    if (receives && consumed_.ok()) consumed_ = consume_(parameter, InOrder(std::move(values), parts));
    return absl::OkStatus();
  }

  absl::StatusOr<const float*> OwnPart(const Parameter& parameter, const std::vector<int64_t>& counts) const {
    const int64_t expected = counts[static_cast<size_t>(context_.shard_group().group_rank)];
    const auto found = shards_.find(&parameter);
    const int64_t held = found == shards_.end() ? 0 : found->second->elements();
    if (held == expected) return found == shards_.end() ? nullptr : found->second->data;
    return absl::InvalidArgumentError(absl::StrCat("shards hold ", held, " elements of '", parameter.name,
                                                   "' instead of ", expected,
                                                   ": pass the model's own, or an optimizer's of them"));
  }

  // Parts that are one run each follow each other as their ranks do.
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
  const bool first_alone_;
  const ArrayConsumer& consume_;
  absl::flat_hash_map<const Parameter*, const ShardView*> shards_;
  absl::Status consumed_;
};

}  // namespace

absl::Status GatherFullState(ShardedModel& model, absl::Span<const ShardView> shards, StateTarget target,
                             const ArrayConsumer& consume) {
  CommContext& context = model.context();
  // Every replica has everything: the first one's shard group is enough for rank 0.
  if (target == StateTarget::kRankZero && context.replicate_group(0).group_rank > 0) return absl::OkStatus();
  ArrayGatherer gatherer(context, shards, target, consume);
  for (const auto& group : model.groups()) {
    if (const absl::Status gathered = gatherer.Gather(*group); !gathered.ok()) return context.Fail(gathered);
  }
  return gatherer.consumed();
}

}  // namespace weft
