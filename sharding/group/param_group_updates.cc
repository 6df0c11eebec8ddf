// Shards of a parameter group as loaders and optimizers see them, and the exchange of updates of replicas.
#include <absl/algorithm/container.h>

#include "sharding/group/group_storage.h"
#include "sharding/group/param_group.h"
#include "sharding/pipeline/replica_updates.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

std::vector<ShardView> AsFloats(const std::vector<MasterView>& masters, const ParameterDTypes& dtypes) {
  WEFT_CHECK(dtypes.master == DType::kF32, "a ShardView of an f64 master");
  std::vector<ShardView> shards;
  shards.reserve(masters.size());
  for (const MasterView& master : masters) {
    shards.push_back({master.parameter, master.piece, reinterpret_cast<float*>(master.data),
                      reinterpret_cast<float*>(master.grad)});
  }
  return shards;
}

// Fills an f64 master with the fp32 values of a loader.
absl::Status FillWidened(const MasterView& master, const ShardLoader& loader) {
  std::vector<float> values(static_cast<size_t>(master.elements()));
  const ShardView narrow{master.parameter, master.piece, values.data(), nullptr};
  WEFT_RETURN_IF_ERROR(FillShards({&narrow, 1}, loader));
  ConvertRun(values.data(), DType::kF32, master.data, DType::kF64, master.elements());
  return absl::OkStatus();
}

}  // namespace

absl::Status ParamGroup::Load(const ShardLoader& loader) {
  updates_->Forget();
  if (dtypes().master == DType::kF32) {
    WEFT_RETURN_IF_ERROR(FillShards(AsFloats(WholeShards(), dtypes()), loader));
  } else {
    for (const MasterView& master : WholeShards()) WEFT_RETURN_IF_ERROR(FillWidened(master, loader));
  }
  return absl::OkStatus();
}

void ParamGroup::DropParameterData() {
  for (const std::shared_ptr<Parameter>& parameter : parameters()) parameter->data.data = nullptr;
}

std::vector<bool> ParamGroup::UsedParameters() const {
  std::vector<bool> used = used_;
  for (size_t i = 0; i < used.size(); ++i)
    used[i] = used[i] && layout().parameters()[i].trainable && parameters()[i]->requires_grad;
  return used;
}

std::vector<bool> ParamGroup::ReducedParameters() const {
  if (sums_ == nullptr || !has_reduced_gradients()) return std::vector<bool>(parameters().size(), false);
  return UsedParameters();
}

std::vector<MasterView> ParamGroup::Masters() const { return MastersWith(ReducedParameters()); }

std::vector<MasterView> ParamGroup::ReducedSums() const {
  return MastersWith(has_reduced_sum() ? UsedParameters() : std::vector<bool>(parameters().size(), false));
}

std::vector<MasterView> ParamGroup::MastersWith(const std::vector<bool>& has_gradient) const {
  const auto element_bytes = static_cast<int64_t>(SizeOf(dtypes().master));
  std::vector<MasterView> shards;
  for (const MasterView& whole : WholeShards()) {
    const auto index = static_cast<size_t>(whole.piece.parameter);
    if (!layout().parameters()[index].trainable) {
      shards.push_back(whole);
      continue;
    }
    int64_t place = 0;  // Offset in the reduced sum.
    for (const ReplicaSlice& slice : slices_) {
      for (const ShardPiece& piece : CutPiece(whole.piece, slice.own)) {
        std::byte* gradient = nullptr;
        if (has_gradient[index]) {
          gradient = sums_->reduced.data() + (place + piece.shard_offset - slice.own.begin) * element_bytes;
        }
        shards.push_back({whole.parameter, piece, storage_->master().At(piece), gradient});
      }
      place += slice.own.count;
    }
  }
  return shards;
}

std::vector<ShardView> ParamGroup::Shards() const { return AsFloats(Masters(), dtypes()); }

absl::Status ParamGroup::Update(const ShardUpdate& update) {
  std::vector<ShardView> shards = Shards();
  std::vector<ShardCast> casts;
  casts.reserve(shards.size());
  for (ShardView& shard : shards) {
    std::byte* place = storage_->PlaceForCast(shard.piece);
    if (place != nullptr) shard.cast = &casts.emplace_back(ShardCast{dtypes().param, place});
  }
  WEFT_RETURN_IF_ERROR(update(shards));
  const auto is_written = [](const ShardCast& cast) { return cast.is_written; };
  if (!casts.empty() && absl::c_all_of(casts, is_written)) storage_->MarkCast();
  return absl::OkStatus();
}

std::vector<MasterView> ParamGroup::WholeShards() const {
  std::vector<MasterView> shards;
  for (const ShardPiece& piece : layout().Pieces(lanes().shard_group().group_rank)) {
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
  return AsFloats(WholeShards(), dtypes());
}

}  // namespace weft
