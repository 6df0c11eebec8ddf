// Shards of a parameter group as optimizers see them, and the exchange of updates between replicas.
#include "sharding/group/group_storage.h"
#include "sharding/group/param_group.h"
#include "sharding/pipeline/replica_updates.h"
#include "weft/core/status.h"

namespace weft {

std::vector<bool> ParamGroup::ReducedParameters() const {
  std::vector<bool> reduced(parameters().size(), false);
  if (sums_ == nullptr || !has_reduced_gradients()) return reduced;
  for (size_t i = 0; i < reduced.size(); ++i) {
    reduced[i] = layout().parameters()[i].trainable && parameters()[i]->requires_grad && used_[i];
  }
  return reduced;
}

std::vector<ShardView> ParamGroup::Shards() const {
  const std::vector<bool> has_gradient = ReducedParameters();
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
        float* gradient = nullptr;
        if (has_gradient[index]) {
          gradient =
              reinterpret_cast<float*>(sums_->reduced.data()) + place + piece.shard_offset - slice.own.begin;
        }
        shards.push_back({whole.parameter, piece, storage_->master().At(piece), gradient});
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
