#include "weft/sharding/param_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <absl/container/flat_hash_set.h>

#include "sharding/group_dtypes.h"
#include "sharding/parameter_views.h"
#include "sharding/shard_copies.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

constexpr int64_t kAlignmentBytes = 64;

int64_t BytesOf(int64_t elements, DType dtype) { return elements * static_cast<int64_t>(SizeOf(dtype)); }

// Offsets are the same in the buffers of every dtype, so the smallest one decides.
int64_t AlignmentElements(const ParameterDTypes& dtypes) {
  return kAlignmentBytes / static_cast<int64_t>(std::min({SizeOf(dtypes.param), SizeOf(dtypes.reduce),
                                                          SizeOf(dtypes.gradient_dtype())}));
}

absl::Status CheckDistinct(const std::string& group, const Parameters& parameters) {
  absl::flat_hash_set<const Parameter*> seen;
  for (const std::shared_ptr<Parameter>& parameter : parameters) {
    if (!seen.insert(parameter.get()).second) {
      return absl::InvalidArgumentError(absl::StrCat("parameter group '", group, "' lists parameter '",
                                                     parameter->name, "' twice: list it once"));
    }
  }
  return absl::OkStatus();
}

std::vector<FlatParameter> Describe(const Parameters& parameters, const ShardingPolicy& policy,
                                    const std::vector<int>& buckets) {
  std::vector<FlatParameter> described;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int shard_dim = policy.shard_dim ? policy.shard_dim(*parameters[i]) : 0;
    described.push_back(
        {parameters[i]->shape, shard_dim, buckets.empty() ? 0 : buckets[i], parameters[i]->requires_grad});
  }
  return described;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParamGroup>> ParamGroup::Create(
    CommContext& context, std::string name, std::vector<std::shared_ptr<Parameter>> parameters,
    const ShardingPolicy& policy, const std::vector<int>& buckets) {
  WEFT_RETURN_IF_ERROR(policy.Validate());
  WEFT_RETURN_IF_ERROR(CheckDistinct(name, parameters));
  if (!buckets.empty() && (buckets.size() != parameters.size() ||
                           *std::max_element(buckets.begin(), buckets.end()) >= context.bucket_count())) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter group '", name, "': there must be one bucket below ", context.bucket_count(),
                     " for each of ", parameters.size(), " parameters"));
  }
  WEFT_ASSIGN_OR_RETURN(const ParameterDTypes dtypes, AgreeOnDTypes(name, parameters, policy));
  const FlatKind kind = policy.zero_copy ? FlatKind::kContiguous : FlatKind::kPerParameter;
  absl::StatusOr<FlatLayout> layout = FlatLayout::Make(
      kind, Describe(parameters, policy, buckets), context.shard_group().size(), AlignmentElements(dtypes));
  if (!layout.ok()) return Annotate(layout.status(), "parameter group '" + name + "'");
  std::unique_ptr<ParamGroup> group(
      new ParamGroup(context, std::move(name), std::move(parameters), policy, dtypes, *std::move(layout)));
  const int64_t master_bytes = BytesOf(group->layout_.shard_elements(), DType::kF32);
  WEFT_ASSIGN_OR_RETURN(group->master_, context.AcquireShard(static_cast<size_t>(master_bytes)));
  std::memset(group->master_.data(), 0, group->master_.bytes());
  return group;
}

ParamGroup::ParamGroup(CommContext& context, std::string name,
                       std::vector<std::shared_ptr<Parameter>> parameters, const ShardingPolicy& policy,
                       const ParameterDTypes& dtypes, FlatLayout layout)
    : context_(context),
      name_(std::move(name)),
      parameters_(std::move(parameters)),
      policy_(policy),
      dtypes_(dtypes),
      layout_(std::move(layout)) {
  if (policy_.zero_copy) return;
  const bool alone = context_.shard_group().size() == 1;
  copy_out_ = PlanCopyOut(layout_, alone ? DType::kF32 : dtypes_.param, dtypes_.param);
  if (const ProcessGroup& neighbours = context_.regather_group(); neighbours.size() > 0) {
    const int ranks = layout_.shard_size() / neighbours.size();
    copy_kept_ = PlanShardCopies(layout_, neighbours.group_rank * ranks, (neighbours.group_rank + 1) * ranks,
                                 dtypes_.param);
  }
  copy_in_ = PlanGradientCopyIn(layout_, dtypes_.gradient_dtype(), dtypes_.reduce);
}

ParamGroup::~ParamGroup() {
  if (state_ == State::kUnsharded) ForgetData(parameters_, data_image());
  if (gradient_image_) ForgetGradients(parameters_);
  context_.AwaitReleases();  // Peers may still gather from the master.
}

absl::Status ParamGroup::Load(const ShardLoader& loader) {
  WEFT_RETURN_IF_ERROR(FillShards(Shards(), loader));
  for (const std::shared_ptr<Parameter>& parameter : parameters_) parameter->data.data = nullptr;
  return absl::OkStatus();
}

bool ParamGroup::master_is_image() const {
  return policy_.zero_copy && context_.shard_group().size() == 1 && dtypes_.param == DType::kF32;
}

FlatImage ParamGroup::data_image() const {
  return {layout_, master_is_image() ? master_.data() : image_.data(), dtypes_.param};
}

absl::Status ParamGroup::Unshard(Priority priority) {
  if (state_ == State::kUnsharding) return absl::OkStatus();
  if (state_ == State::kUnsharded) return ViewImage();
  WEFT_RETURN_IF_ERROR(context_.status());
  WEFT_RETURN_IF_ERROR(CheckDataStorage(parameters_, dtypes_.param));
  if (!master_is_image()) WEFT_RETURN_IF_ERROR(Gather(priority));
  state_ = State::kUnsharding;
  return absl::OkStatus();
}

absl::Status ParamGroup::Gather(Priority priority) {
  const DType dtype = dtypes_.param;
  const bool alone = context_.shard_group().size() == 1;
  const auto image_bytes = static_cast<size_t>(BytesOf(layout_.image_elements(), dtype));
  WEFT_ASSIGN_OR_RETURN(image_, context_.AcquireImage(image_bytes));
  if (!policy_.zero_copy && alone) return absl::OkStatus();
  if (!policy_.zero_copy) {
    const auto gathered_bytes = static_cast<size_t>(BytesOf(layout_.gathered_elements(), dtype));
    WEFT_ASSIGN_OR_RETURN(gathered_, context_.AcquireImage(gathered_bytes));
  }
  std::byte* gathered = policy_.zero_copy ? image_.data() : gathered_.data();
  WEFT_ASSIGN_OR_RETURN(gather_, kept_ ? GatherKept(gathered, priority) : GatherShards(gathered, priority));
  return absl::OkStatus();
}

absl::StatusOr<Transfer> ParamGroup::GatherShards(std::byte* gathered, Priority priority) {
  const void* shard = dtypes_.param == DType::kF32 ? master_.data() : PlaceOwnShard(gathered);
  if (context_.shard_group().size() == 1 || layout_.gathered_elements() == 0) return Transfer();
  return context_.AllGather(
      {name_, context_.shard_group(), shard, gathered, dtypes_.param, layout_.gathered_elements(), priority},
      all_gather_);
}

absl::StatusOr<Transfer> ParamGroup::GatherKept(std::byte* gathered, Priority priority) {
  const int64_t bytes = BytesOf(kept_elements(), dtypes_.param);
  std::byte* own = gathered + context_.regather_group().group_rank * bytes;
  std::memcpy(own, kept_.data(), static_cast<size_t>(bytes));
  context_.CountCopy(bytes);
  kept_.Reset();
  return context_.AllGather(
      {name_, context_.regather_group(), own, gathered, dtypes_.param, layout_.gathered_elements(), priority},
      all_gather_);
}

int64_t ParamGroup::kept_elements() const {
  return layout_.gathered_elements() / context_.regather_group().size();
}

const void* ParamGroup::PlaceOwnShard(std::byte* gathered) {
  const DType dtype = dtypes_.param;
  const int64_t shard_bytes = BytesOf(layout_.shard_elements(), dtype);
  std::byte* own = gathered + context_.shard_group().group_rank * shard_bytes;
  ConvertRun(master_.data(), DType::kF32, own, dtype, layout_.shard_elements());
  context_.CountCopy(shard_bytes);
  return own;
}

absl::Status ParamGroup::WaitUnshard() {
  if (state_ == State::kUnsharded) return absl::OkStatus();
  if (state_ != State::kUnsharding) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter group '", name_, "' is sharded and no unshard is pending: call Unshard first"));
  }
  if (gather_.valid()) {
    if (const absl::Status ready = gather_.Wait(); !ready.ok()) return context_.Fail(ready);
  }
  if (!policy_.zero_copy) {
    // A shard group of one copies, and casts, straight out of its master.
    context_.CountCopy(RunCopies(copy_out_, gathered_ ? gathered_.data() : master_.data(), image_.data()));
    context_.Retire(std::move(gather_), std::move(gathered_));
  }
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
  kept_.Reset();
  state_ = State::kSharded;
  return absl::OkStatus();
}

absl::Status ParamGroup::ReshardAfterForward() {
  const bool keeps =
      state_ == State::kUnsharded && context_.regather_group().size() > 0 && layout_.gathered_elements() > 0;
  if (!keeps) return state_ == State::kShardedAfterForward ? absl::OkStatus() : Reshard();
  WEFT_RETURN_IF_ERROR(KeepPart());
  ForgetData(parameters_, data_image());
  DropImage();
  state_ = State::kShardedAfterForward;
  return absl::OkStatus();
}

absl::Status ParamGroup::KeepPart() {
  const int64_t bytes = BytesOf(kept_elements(), dtypes_.param);
  WEFT_ASSIGN_OR_RETURN(kept_, context_.AcquireImage(static_cast<size_t>(bytes)));
  if (policy_.zero_copy) {
    std::memcpy(kept_.data(), image_.data() + context_.regather_group().group_rank * bytes,
                static_cast<size_t>(bytes));
    context_.CountCopy(bytes);
  } else {
    context_.CountCopy(RunCopies(copy_kept_, image_.data(), kept_.data()));
  }
  return absl::OkStatus();
}

void ParamGroup::DropImage() {
  context_.Retire(std::move(gather_), std::move(image_));
  state_ = State::kSharded;
}

void ParamGroup::ResetAfterError() {
  if (state_ == State::kUnsharded) ForgetData(parameters_, data_image());
  gather_ = Transfer();
  gathered_.Reset();
  image_.Reset();
  kept_.Reset();
  state_ = State::kSharded;
  ZeroGradients();
}

std::vector<ShardView> ParamGroup::Shards() const {
  auto* data = reinterpret_cast<float*>(master_.data());
  auto* grad =
      sums_ != nullptr && has_reduced_gradients() ? reinterpret_cast<float*>(sums_->reduced.data()) : nullptr;
  std::vector<ShardView> shards;
  for (const ShardPiece& piece : layout_.Pieces(context_.shard_group().group_rank)) {
    const auto index = static_cast<size_t>(piece.parameter);
    const bool trained = parameters_[index]->requires_grad && layout_.parameters()[index].trainable;
    shards.push_back({parameters_[index].get(), piece, data + piece.shard_offset,
                      grad != nullptr && trained ? grad + piece.shard_offset : nullptr});
  }
  return shards;
}

}  // namespace weft
