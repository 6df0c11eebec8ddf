#include "weft/sharding/policy.h"

#include "weft/core/status.h"

namespace weft {
namespace {

absl::Status CheckDType(std::string_view option, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kBF16) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(option), " is ", ToAbsl(Name(dtype)), ": it must be f32 or bf16"));
}

}  // namespace

absl::Status ShardingPolicy::Validate() const {
  WEFT_RETURN_IF_ERROR(CheckDType("param_dtype", param_dtype));
  WEFT_RETURN_IF_ERROR(CheckDType("reduce_dtype", reduce_dtype));
  if (prefetch_depth < 0 || prefetch_depth > kMaxPrefetchDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefetch_depth is ", prefetch_depth, ": it must be 0 to ", kMaxPrefetchDepth));
  }
  if (max_reduce_scatters < 1 || max_all_reduces < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_reduce_scatters is ", max_reduce_scatters,
                                                   " and max_all_reduces ", max_all_reduces,
                                                   ": both must be at least 1"));
  }
  if (zero_copy && shard_dim) {
    return absl::InvalidArgumentError(
        "shard_dim is set although zero_copy is on, which cuts the flat buffer wherever ranges end: switch "
        "zero_copy "
        "off, or leave shard_dim unset");
  }
  return absl::OkStatus();
}

DType ShardingPolicy::gradient_dtype() const {
  return param_dtype == DType::kBF16 && reduce_dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
}

}  // namespace weft
