#include "weft/sharding/param_group.h"

#include <utility>

#include "sharding/group/group_storage.h"
#include "sharding/pipeline/replica_updates.h"
#include "sharding/plan/group_spec.h"
#include "sharding/plan/parameter_views.h"
#include "sharding/plan/shard_copies.h"
#include "weft/core/status.h"

namespace weft {

absl::StatusOr<std::unique_ptr<ParamGroup>> ParamGroup::Create(
    CommContext& context, std::string name, std::vector<std::shared_ptr<Parameter>> parameters,
    const ShardingPolicy& policy, const std::vector<int>& buckets) {
  WEFT_ASSIGN_OR_RETURN(GroupSpec spec,
                        SpecifyGroup(std::move(name), std::move(parameters), policy,
                                     context.shard_group().size(), buckets, context.bucket_count()));
  return Create(context, std::move(spec), policy, SharedBlock());
}

absl::StatusOr<std::unique_ptr<ParamGroup>> ParamGroup::Create(CommContext& context, GroupSpec spec,
                                                               const ShardingPolicy& policy,
                                                               SharedBlock image) {
  std::unique_ptr<ParamGroup> group(new ParamGroup(context, std::move(spec), policy));
  const StoredGroup stored = {context,          group->name_,         group->layout_,
                              *group->updates_, group->dtypes_.param, policy.zero_copy};
  WEFT_ASSIGN_OR_RETURN(group->storage_, GroupStorage::Create(stored, std::move(image)));
  return group;
}

ParamGroup::ParamGroup(CommContext& context, GroupSpec spec, const ShardingPolicy& policy)
    : context_(context),
      name_(std::move(spec.name)),
      parameters_(std::move(spec.parameters)),
      policy_(policy),
      dtypes_(spec.dtypes),
      layout_(std::move(spec.layout)),
      slices_(context.SlicesOf(layout_, dtypes_.reduce)),
      updates_(std::make_unique<ReplicaUpdates>(context_, name_, slices_)) {
  if (!policy_.zero_copy) copy_in_ = PlanGradientCopyIn(layout_, dtypes_.gradient_dtype(), dtypes_.reduce);
}

ParamGroup::~ParamGroup() {
  if (state_ == State::kUnsharded) ForgetData(parameters_, data_image());
  if (gradient_image_) ForgetGradients(parameters_);
  context_.AwaitReleases();  // Peers may still gather from the master.
}

void ParamGroup::SetCustomAllGather(CustomAllGather all_gather) {
  storage_->SetCustomAllGather(std::move(all_gather));
}

absl::Status ParamGroup::Load(const ShardLoader& loader) {
  updates_->Forget();
  WEFT_RETURN_IF_ERROR(FillShards(WholeShards(), loader));
  for (const std::shared_ptr<Parameter>& parameter : parameters_) parameter->data.data = nullptr;
  return absl::OkStatus();
}

FlatImage ParamGroup::data_image() const { return {layout_, storage_->image(), dtypes_.param}; }

absl::Status ParamGroup::EndWriting() { return storage_->EndWriting(); }

absl::Status ParamGroup::Unshard(Priority priority) {
  if (state_ == State::kUnsharding) return absl::OkStatus();
  if (state_ == State::kUnsharded) return ViewImage();
  WEFT_RETURN_IF_ERROR(context_.status());
  WEFT_RETURN_IF_ERROR(CheckDataStorage(parameters_, dtypes_.param));
  WEFT_RETURN_IF_ERROR(AllGatherUpdates(priority));
  WEFT_RETURN_IF_ERROR(storage_->Gather(priority));
  state_ = State::kUnsharding;
  return absl::OkStatus();
}

absl::Status ParamGroup::WaitUnshard() {
  if (state_ == State::kUnsharded) return absl::OkStatus();
  if (state_ != State::kUnsharding) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter group '", name_, "' is sharded and no unshard is pending: call Unshard first"));
  }
  WEFT_RETURN_IF_ERROR(storage_->Await());
  state_ = State::kUnsharded;
  absl::Status viewed = ViewImage();
  if (!viewed.ok()) DropImage();
  return viewed;
}

absl::Status ParamGroup::ViewImage() {
  WEFT_ASSIGN_OR_RETURN(FallbackReport report, ViewData(parameters_, data_image()));
  context_.CountCopy(report.copied_bytes);
  fallback_reason_ = std::move(report.reason);
  return absl::OkStatus();
}

absl::Status ParamGroup::Reshard() {
  if (state_ == State::kUnsharding) {
    return absl::FailedPreconditionError(
        absl::StrCat("parameter group '", name_, "' is being unsharded: call WaitUnshard before Reshard"));
  }
  if (state_ == State::kUnsharded) {
    ForgetData(parameters_, data_image());
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
  ForgetData(parameters_, image);
  state_ = State::kShardedAfterForward;
  return absl::OkStatus();
}

void ParamGroup::DropImage() {
  storage_->Drop();
  state_ = State::kSharded;
}

void ParamGroup::ResetAfterError() {
  if (state_ == State::kUnsharded) ForgetData(parameters_, data_image());
  storage_->ResetAfterError();
  updates_->Forget();
  state_ = State::kSharded;
  ZeroGradients();
}

}  // namespace weft
