#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "sharding/plan/group_spec.h"
#include "sharding/plan/parameter_views.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// A dtype that must be the same for all parameters of a group.
struct Trait {
  std::string_view name;
  std::string_view remedy;
  // Null: the parameter has none, and agrees with any.
  std::function<std::optional<DType>(const Parameter&)> of;
};

absl::Status CheckAgreement(const std::string& group, const Parameters& parameters, const Trait& trait) {
  const Parameter* first = nullptr;
  DType expected = DType::kF32;
  std::string different;
  for (const std::shared_ptr<Parameter>& parameter : parameters) {
    const std::optional<DType> dtype = trait.of(*parameter);
    if (!dtype) continue;
    if (first == nullptr) {
      first = parameter.get();
      expected = *dtype;
    } else if (*dtype != expected) {
      absl::StrAppend(&different, different.empty() ? "" : ", ", "'", parameter->name, "' has ",
                      ToAbsl(Name(*dtype)));
    }
  }
  if (different.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("parameter group '", group, "' mixes ", ToAbsl(trait.name),
                                                 " dtypes: '", first->name, "' has ", ToAbsl(Name(expected)),
                                                 ", but ", different, "; ", ToAbsl(trait.remedy)));
}

}  // namespace

absl::StatusOr<ParameterDTypes> AgreeOnDTypes(const std::string& group, const Parameters& parameters,
                                              const ShardingPolicy& policy) {
  constexpr std::string_view kSplit = "give them the same, or shard them in groups of their own";
  const Trait traits[] = {
      {"original", "convert them to one dtype before sharding, or shard them in groups of their own",
       [](const Parameter& p) {
         return p.data.data == nullptr ? std::nullopt : std::optional(p.data.dtype);
       }},
      {"all-gather", kSplit, [&policy](const Parameter& p) { return policy.DTypesOf(p).param; }},
      {"reduce", kSplit, [&policy](const Parameter& p) { return policy.DTypesOf(p).reduce; }},
      {"master", kSplit, [&policy](const Parameter& p) { return policy.DTypesOf(p).master; }},
      {"gradient", kSplit, [&policy](const Parameter& p) { return policy.DTypesOf(p).gradient_dtype(); }},
  };
  for (const std::shared_ptr<Parameter>& parameter : parameters) {
    const absl::Status valid = policy.DTypesOf(*parameter).Validate();
    if (!valid.ok()) return Annotate(valid, "parameter '" + parameter->name + "' of group '" + group + "'");
  }
  for (const Trait& trait : traits) WEFT_RETURN_IF_ERROR(CheckAgreement(group, parameters, trait));
  if (parameters.empty()) return policy.DTypes();
  return policy.DTypesOf(*parameters.front());
}

}  // namespace weft
