#include "weft/sharding/policy.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <absl/strings/str_join.h>
#include <absl/types/span.h>

#include "weft/core/status.h"

namespace weft {
namespace {

absl::Status CheckDType(std::string_view option, DType dtype, absl::Span<const DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), dtype) != allowed.end()) return absl::OkStatus();
  const std::string names = absl::StrJoin(allowed, " or ", [](std::string* out, DType allowed_dtype) {
    absl::StrAppend(out, ToAbsl(Name(allowed_dtype)));
  });
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(option), " is ", ToAbsl(Name(dtype)), ": it must be ", names));
}

}  // namespace

std::string_view Name(NodeShared node_shared) {
  switch (node_shared) {
    case NodeShared::kAuto:
      return "auto";
    case NodeShared::kOn:
      return "on";
    case NodeShared::kOff:
      break;
  }
  return "off";
}

std::string_view Name(GradientSync sync) {
  switch (sync) {
    case GradientSync::kLast:
      return "last";
    case GradientSync::kReduceScatter:
      return "reduce-scatter";
    case GradientSync::kEach:
      break;
  }
  return "each";
}

absl::Status ParameterDTypes::Validate() const {
  WEFT_RETURN_IF_ERROR(
      CheckDType("param_dtype", param, {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}));
  WEFT_RETURN_IF_ERROR(
      CheckDType("reduce_dtype", reduce, {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}));
  WEFT_RETURN_IF_ERROR(
      CheckDType("gradient_dtype", gradient_dtype(), {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}));
  return CheckDType("master_dtype", master, {DType::kF32, DType::kF64});
}

DType ParameterDTypes::gradient_dtype() const {
  if (gradient.has_value()) return *gradient;
  if (param == DType::kF64) return DType::kF64;
  const bool is_narrow = param == DType::kBF16 || param == DType::kF16;
  return is_narrow && reduce == param ? param : DType::kF32;
}

ParameterDTypes ShardingPolicy::DTypesOf(const Parameter& parameter) const {
  return dtypes_of ? dtypes_of(parameter) : DTypes();
}

absl::Status ShardingPolicy::Validate() const {
  WEFT_RETURN_IF_ERROR(DTypes().Validate());
  if (!(gradient_divide_factor > 0.0) || std::isinf(gradient_divide_factor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient_divide_factor is ", gradient_divide_factor, ": it must be a positive number"));
  }
  if (reshard_after_forward_size < 0 || reshard_after_forward_size == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("reshard_after_forward_size is ", reshard_after_forward_size,
                     ": it must be 0 (keep nothing) or more than 1; to keep everything, switch "
                     "reshard_after_forward off"));
  }
  if (reshard_after_forward_size > 1 && !reshard_after_forward) {
    return absl::InvalidArgumentError(
        absl::StrCat("reshard_after_forward_size is ", reshard_after_forward_size,
                     " although reshard_after_forward is off, which keeps everything: set one of them"));
  }
  if (mesh_of && shard_optimizer_over_replicas) {
    return absl::InvalidArgumentError(
        "mesh_of gives parameters a mesh of their own, and shard_optimizer_over_replicas is on, which needs "
        "the replicas of one mesh: leave one of them out");
  }
  if (PrefetchDepth() < 0 || PrefetchDepth() > kMaxPrefetchDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefetch_depth is ", PrefetchDepth(), ": it must be 0 to ", kMaxPrefetchDepth));
  }
  if (max_reduce_scatters < 0 || max_all_reduces < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_reduce_scatters is ", max_reduce_scatters,
                                                   " and max_all_reduces ", max_all_reduces,
                                                   ": they must be at least 0 and 1"));
  }
  if (is_zero_copy() && shard_dim) {
    return absl::InvalidArgumentError(
        "shard_dim is set although the layout is zero copy, which cuts the flat buffer or whole rows: set "
        "the "
        "layout to kPerParameter, or leave shard_dim unset");
  }
  return absl::OkStatus();
}

}  // namespace weft
