// Shards of a parameter group as optimizers see them, and the exchange of updates between replicas.
#include "sharding/group/group_storage.h"
#include "sharding/group/param_group.h"
#include "sharding/pipeline/replica_updates.h"
#include "weft/core/status.h"

namespace weft {

std::vector<ShardView> ParamGroup::Shards() const {
  auto* reduced =
      sums_ != nullptr && has_reduced_gradients() ? reinterpret_cast<float*>(sums_->reduced.data()) : nullptr;
  std::vector<ShardView> shards;
  for (const ShardView& whole : WholeShards()) {
    const auto index = static_cast<size_t>(whole.piece.parameter);
    if (!layout().parameters()[index].trainable) {
      shards.push_back(whole);
      continue;
    }
    int64_t place = 0;  // Offset in the reduced sum.
    for (const ReplicaSlice& slice : slices_) {
      for (const ShardPiece& piece : CutPiece(whole.piece, slice.own)) {
        const bool has_grad = reduced != nullptr && parameters()[index]->requires_grad && used_[index];
        shards.push_back({whole.parameter, piece, storage_->master().At(piece),
                          has_grad ? reduced + place + piece.shard_offset - slice.own.begin : nullptr});
      }
      place += slice.own.count;
    }
  }
  return shards;
}

std::vector<ShardView> ParamGroup::WholeShards() const {
  std::vector<ShardView> shards;
  for (const ShardPiece& piece : layout().Pieces(context_.lanes().shard_group().group_rank)) {
    const Parameter* parameter = parameters()[static_cast<size_t>(piece.parameter)].get();
    shards.push_back({parameter, piece, storage_->master().At(piece), nullptr});
  }
  return shards;
}

absl::Status ParamGroup::AllGatherUpdates(Priority priority) {
  if (state_ == State::kUnsharded) return absl::OkStatus();  // Parameters may view the shard.
  return updates_->AllGather(reinterpret_cast<float*>(storage_->master().data()), priority);
}

absl::StatusOr<std::vector<ShardView>> ParamGroup::CurrentShards() {
  WEFT_RETURN_IF_ERROR(updates_->Await());
  return WholeShards();
}

}  // namespace weft
