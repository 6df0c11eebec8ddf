#include "sharding/group/param_group.h"

#include <utility>

#include "sharding/group/group_storage.h"
#include "sharding/pipeline/replica_updates.h"
#include "sharding/plan/parameter_views.h"
#include "sharding/plan/shard_copies.h"
#include "weft/core/status.h"

namespace weft {

absl::StatusOr<std::unique_ptr<ParamGroup>> ParamGroup::Create(CommContext& context, GroupSpec spec,
                                                               const ShardingPolicy& policy,
                                                               SharedBlock image) {
  std::unique_ptr<ParamGroup> group(new ParamGroup(context, std::move(spec), policy));
  WEFT_ASSIGN_OR_RETURN(group->storage_,
                        GroupStorage::Create(context, group->spec_, *group->updates_, std::move(image)));
  if (group->storage_->master().is_in_ranges()) group->updates_->UseRanges(group->ReplicaParts());
  return group;
}

ParamGroup::ParamGroup(CommContext& context, GroupSpec spec, const ShardingPolicy& policy)
    : context_(context),
      spec_(std::move(spec)),
      gradient_divide_factor_(policy.gradient_divide_factor),
      slices_(context.lanes(spec_.mesh).SlicesOf(spec_.layout, spec_.dtypes.reduce)),
      updates_(std::make_unique<ReplicaUpdates>(context_, spec_.name(), slices_)),
      written_(parameters().size()),
      used_(parameters().size(), true) {
  for (const auto& parameter : parameters()) parameter->sharded_by = name();
  if (spec_.is_zero_copy()) return;
  copy_in_ = PlanGradientCopyIn(spec_.layout, spec_.dtypes.gradient_dtype(), spec_.dtypes.reduce);
}

std::vector<PipelineLanes::Parts> ParamGroup::ReplicaParts() const {
  std::vector<PipelineLanes::Parts> parts;
  for (const ReplicaSlice& slice : slices_) {
    absl::StatusOr<PipelineLanes::Parts> made =
        PartRanges::Make(ReplicaImageRanges(layout(), lanes().shard_group().group_rank, slice));
    WEFT_CHECK(made.ok(), ToStd(made.status().message()));
    parts.push_back(*std::move(made));
  }
  return parts;
}

ParamGroup::~ParamGroup() {
  for (const auto& parameter : parameters()) parameter->sharded_by.clear();
  if (state_ == State::kUnsharded) ForgetData(parameters(), data_image());
  if (gradient_image_) ForgetGradients(parameters());
  context_.AwaitReleases();  // Peers may still read the master.
}

void ParamGroup::SetCustomAllGather(CustomAllGather all_gather) {
  storage_->SetCustomAllGather(std::move(all_gather));
}

FlatImage ParamGroup::data_image() const { return {layout(), storage_->image(), dtypes().param}; }

void ParamGroup::BeginWriting() { storage_->BeginWriting(); }

absl::Status ParamGroup::EndWriting() { return storage_->EndWriting(); }

absl::Status ParamGroup::Unshard(Priority priority) {
  if (state_ == State::kUnsharding) return absl::OkStatus();
  if (state_ == State::kUnsharded) {
    context_.epochs().MarkRead();  // The image may be of an earlier epoch.
    return ViewImage();
  }
  WEFT_RETURN_IF_ERROR(context_.state().status());
  WEFT_RETURN_IF_ERROR(CheckDataStorage(parameters(), dtypes().param));
  context_.epochs().MarkRead();
  WEFT_RETURN_IF_ERROR(AllGatherUpdates(priority));
  WEFT_RETURN_IF_ERROR(storage_->Gather(priority));
  state_ = State::kUnsharding;
  return absl::OkStatus();
}

absl::Status ParamGroup::WaitUnshard() {
  if (state_ == State::kUnsharded) return absl::OkStatus();
  if (state_ != State::kUnsharding) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter group '", name(), "' is sharded and no unshard is pending: call Unshard first"));
  }
  WEFT_RETURN_IF_ERROR(storage_->Await());
  state_ = State::kUnsharded;
  absl::Status viewed = ViewImage();
  if (!viewed.ok()) DropImage();
  return viewed;
}

absl::Status ParamGroup::ViewImage() {
  WEFT_ASSIGN_OR_RETURN(const int64_t copied_bytes, ViewData(parameters(), data_image()));
  context_.state().CountCopy(copied_bytes);
  return absl::OkStatus();
}

absl::Status ParamGroup::Reshard() {
  if (state_ == State::kUnsharding) {
    return absl::FailedPreconditionError(
        absl::StrCat("parameter group '", name(), "' is being unsharded: call WaitUnshard before Reshard"));
  }
  if (state_ == State::kUnsharded) {
    ForgetData(parameters(), data_image());
    DropImage();
  }
  storage_->DropPart();
  state_ = State::kSharded;
  return absl::OkStatus();
}

absl::Status ParamGroup::ReshardAfterForward() {
  if (state_ == State::kShardedAfterForward) return absl::OkStatus();
  if (state_ != State::kUnsharded) return Reshard();
  const FlatImage image = data_image();
  WEFT_ASSIGN_OR_RETURN(const bool kept, storage_->KeepPart());
  if (!kept) return Reshard();
  ForgetData(parameters(), image);
  state_ = State::kShardedAfterForward;
  return absl::OkStatus();
}

void ParamGroup::DropImage() {
  storage_->Drop();
  state_ = State::kSharded;
}

void ParamGroup::ResetAfterError() {
  if (state_ == State::kUnsharded) ForgetData(parameters(), data_image());
  storage_->ResetAfterError();
  updates_->Forget();
  state_ = State::kSharded;
  ZeroGradients();
}

}  // namespace weft
