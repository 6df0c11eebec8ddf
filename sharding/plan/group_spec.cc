#include "sharding/plan/group_spec.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "sharding/plan/parameter_views.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kAlignmentBytes = 64;

// Offsets are the same in the buffers of every dtype, so the smallest dtype decides.
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

std::vector<FlatParameter> FlatParametersOf(const Parameters& parameters, const ShardingPolicy& policy,
                                            const std::vector<int>& buckets) {
  std::vector<FlatParameter> described;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int shard_dim = policy.shard_dim ? policy.shard_dim(*parameters[i]) : 0;
    const bool trainable =
        parameters[i]->requires_grad || (policy.trained_later && policy.trained_later(*parameters[i]));
    described.push_back({parameters[i]->shape, shard_dim, buckets.empty() ? 0 : buckets[i], trainable});
  }
  return described;
}

absl::Status SizeError(const GroupMembers& members, int size, const absl::AlphaNum& reason) {
  return absl::InvalidArgumentError(
      absl::StrCat("parameter group '", members.name, "': reshard_after_forward_size is ", size, reason));
}

// True if the policy reshards the group after forward.
bool IsResharded(const GroupMembers& members, const ShardingPolicy& policy) {
  return members.parent == -1 ? policy.reshard_root_after_forward : policy.reshard_after_forward;
}

absl::StatusOr<int> RegatherSize(const GroupMembers& members, const ShardingPolicy& policy, int shard_size) {
  std::optional<int> own;
  if (policy.reshard_after_forward_size_of) own = policy.reshard_after_forward_size_of(members.name);
  const int size = own.value_or(policy.reshard_after_forward_size);
  if (size == 0) return 0;
  if (size < 2 || shard_size % size != 0) {
    std::vector<int> divisors;
    for (int divisor = 2; divisor <= shard_size; ++divisor) {
      if (shard_size % divisor == 0) divisors.push_back(divisor);
    }
    return SizeError(members, size,
                     absl::StrCat(": it must be 0 (keep nothing)", divisors.empty() ? "" : " or one of ",
                                  absl::StrJoin(divisors, ", "), ", as the shard group has ", shard_size,
                                  shard_size == 1 ? " rank" : " ranks"));
  }
  if (own && !IsResharded(members, policy)) {
    return SizeError(
        members, size,
        absl::StrCat(", although ",
                     members.parent == -1 ? "reshard_root_after_forward" : "reshard_after_forward",
                     " is off, which keeps everything: set one of them"));
  }
  return size;
}

using RangesOfRank = std::vector<FlatRange> (FlatLayout::*)(int shard_rank) const;

std::shared_ptr<const PartRanges> PartsOf(const FlatLayout& layout, RangesOfRank ranges_of) {
  std::vector<std::vector<FlatRange>> parts;
  parts.reserve(static_cast<size_t>(layout.shard_size()));
  for (int rank = 0; rank < layout.shard_size(); ++rank) parts.push_back((layout.*ranges_of)(rank));
  absl::StatusOr<std::shared_ptr<const PartRanges>> made = PartRanges::Make(parts);
  WEFT_CHECK(made.ok(), ToStd(made.status().message()));
  return *std::move(made);
}

}  // namespace

absl::StatusOr<GroupSpec> SpecifyGroup(GroupMembers members, const ShardingPolicy& policy, int shard_size,
                                       const std::vector<int>& buckets, int bucket_count) {
  const std::string& name = members.name;
  const Parameters& parameters = members.parameters;
  WEFT_RETURN_IF_ERROR(CheckDistinct(name, parameters));
  if (!buckets.empty() && (buckets.size() != parameters.size() ||
                           *std::max_element(buckets.begin(), buckets.end()) >= bucket_count)) {
    return absl::InvalidArgumentError(absl::StrCat("parameter group '", name,
                                                   "': there must be one bucket below ", bucket_count,
                                                   " for each of ", parameters.size(), " parameters"));
  }
  WEFT_ASSIGN_OR_RETURN(const ParameterDTypes dtypes, AgreeOnDTypes(name, parameters, policy));
  if (policy.shard_optimizer_over_replicas && dtypes.master != DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter group '", name, "' has ", ToAbsl(Name(dtypes.master)),
                     " masters, but replicas share the optimizer, and exchange updates in f32: switch "
                     "shard_optimizer_over_replicas off"));
  }
  absl::StatusOr<FlatLayout> layout = FlatLayout::Make(
      policy.layout, FlatParametersOf(parameters, policy, buckets), shard_size, AlignmentElements(dtypes));
  if (!layout.ok()) return Annotate(layout.status(), "parameter group '" + name + "'");
  WEFT_ASSIGN_OR_RETURN(const int regather_size, RegatherSize(members, policy, shard_size));
  GroupSpec spec{std::move(members), dtypes, *std::move(layout)};
  spec.regather_size = regather_size;
  if (spec.is_zero_copy() && !spec.layout.is_end_to_end()) {
    spec.image_parts = PartsOf(spec.layout, &FlatLayout::ImageRanges);
    spec.gradient_parts = PartsOf(spec.layout, &FlatLayout::ReducedRanges);
  }
  return spec;
}

}  // namespace weft
