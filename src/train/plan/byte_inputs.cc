#include "src/train/plan/byte_inputs.h"

#include <algorithm>
#include <limits>
#include <string>

#include <absl/strings/str_cat.h>

#include "src/train/files/json.h"
#include "src/train/files/json_fields.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Limits of what a file may ask for. The largest models have some 1e13 elements.
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxGroups = 1 << 16;
constexpr int64_t kMaxElements = int64_t{1} << 44;

bool IsAlike(const std::vector<FlatParameter>& a, const std::vector<FlatParameter>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const FlatParameter& x, const FlatParameter& y) {
                      return x.shape == y.shape && x.shard_dim == y.shard_dim && x.trainable == y.trainable;
                    });
}

// Consecutive ranks of each node; 0 if one node has all ranks, or if nodes differ.
int RanksPerNode(const NodeMap& nodes) {
  if (nodes.node_count() == 1) return 0;
  const auto first = static_cast<int>(nodes.RanksOf(0).size());
  const bool is_even = nodes.size() % first == 0 &&
                       nodes.node_of_rank == NodeMap::RanksPerNode(nodes.size(), first).node_of_rank;
  return is_even ? first : 0;
}

FlatParameter ReadParameter(JsonFields json) {
  FlatParameter parameter{.shape = {}, .trainable = json.Bool("trainable")};
  int64_t elements = 1;
  for (const Json& size : json.List("shape")) {
    parameter.shape.push_back(json.WholeOf(size, "shape", 0, kMaxElements / std::max<int64_t>(elements, 1)));
    elements *= parameter.shape.back();
  }
  return parameter;
}

ByteInputs::Groups ReadGroups(JsonFields json) {
  ByteInputs::Groups groups{json.Whole("count", 1, kMaxGroups), {}};
  for (const Json& parameter : json.List("parameters")) {
    if (!json.status().ok()) break;
    groups.parameters.push_back(ReadParameter(json.Inner(parameter)));
  }
  return groups;
}

}  // namespace

ByteInputs ByteInputsOf(const ShardedGroups& groups, const RunPlan& plan, const NodeMap& nodes) {
  ByteInputs inputs;
  for (int group = 0; group < groups.group_count(); ++group) {
    const FlatLayout& layout = groups.layout(group);
    inputs.alignment = layout.alignment();
    if (inputs.groups.empty() || !IsAlike(inputs.groups.back().parameters, layout.parameters())) {
      inputs.groups.push_back({0, layout.parameters()});
    }
    ++inputs.groups.back().count;
  }
  inputs.policy = groups.policy();
  inputs.shape.shard_size = plan.shard_group_size();
  inputs.shape.replicate_size = plan.replicate_size;
  inputs.shape.microbatches = static_cast<int>(plan.batch.microbatches);
  inputs.shape.gradient_sync = plan.parallel.grad_sync;
  inputs.shape.ranks_per_node = RanksPerNode(nodes);
  inputs.shape.residency = groups.residency().residency;
  inputs.spans_nodes = SpanNodes(nodes, plan.shard_group_size());
  inputs.has_even_nodes = nodes.node_count() == 1 || inputs.shape.ranks_per_node > 0;
  return inputs;
}

Json ToJson(const ByteInputs& inputs) {
  const ShardingPolicy& policy = inputs.policy;
  const StepShape& shape = inputs.shape;
  Json json = {{"shard_size", shape.shard_size},
               {"replicate_size", shape.replicate_size},
               {"microbatches", shape.microbatches},
               {"gradient_sync", Name(shape.gradient_sync)},
               {"ranks_per_node", shape.ranks_per_node},
               {"has_even_nodes", inputs.has_even_nodes},
               {"spans_nodes", inputs.spans_nodes},
               {"residency", Name(shape.residency)},
               {"layout", Name(policy.layout)},
               {"alignment", inputs.alignment},
               {"param_dtype", Name(policy.param_dtype)},
               {"reduce_dtype", Name(policy.reduce_dtype)},
               {"gradient_dtype", Name(policy.DTypes().gradient_dtype())},
               {"reshard_after_forward", policy.reshard_after_forward},
               {"reshard_root_after_forward", policy.reshard_root_after_forward},
               {"prefetch_depth", policy.PrefetchDepth()},
               {"shard_optimizer_over_replicas", policy.shard_optimizer_over_replicas},
               {"groups", Json::array()}};
  for (const ByteInputs::Groups& groups : inputs.groups) {
    Json parameters = Json::array();
    for (const FlatParameter& parameter : groups.parameters) {
      parameters.push_back({{"shape", parameter.shape}, {"trainable", parameter.trainable}});
    }
    json["groups"].push_back({{"count", groups.count}, {"parameters", std::move(parameters)}});
  }
  return json;
}

absl::StatusOr<ByteInputs> ParseByteInputs(const Json& json) {
  JsonFields fields(json, "byte_inputs", "give a file that weft train has written");
  ByteInputs inputs;
  StepShape& shape = inputs.shape;
  shape.shard_size = static_cast<int>(fields.Whole("shard_size", 1, kMaxRanks));
  shape.replicate_size = static_cast<int>(fields.Whole("replicate_size", 1, kMaxRanks));
  shape.microbatches = static_cast<int>(fields.Whole("microbatches", 1, std::numeric_limits<int>::max()));
  shape.gradient_sync =
      fields.OneOf("gradient_sync", {GradientSync::kLast, GradientSync::kReduceScatter, GradientSync::kEach});
  shape.ranks_per_node = static_cast<int>(fields.Whole("ranks_per_node", 0, kMaxRanks));
  inputs.has_even_nodes = fields.Bool("has_even_nodes");
  inputs.spans_nodes = fields.Bool("spans_nodes");
  shape.residency =
      fields.OneOf("residency", {Residency::kPrivate, Residency::kInPlace, Residency::kNodeShared});
  ShardingPolicy& policy = inputs.policy;
  policy.layout = fields.OneOf("layout", {FlatKind::kContiguous, FlatKind::kPerParameter});
  inputs.alignment = fields.Whole("alignment", 1, 64);
  policy.param_dtype = fields.OneOf("param_dtype", {DType::kF32, DType::kBF16, DType::kF16});
  policy.reduce_dtype = fields.OneOf("reduce_dtype", {DType::kF32, DType::kBF16, DType::kF16});
  // Older files lack it. It then follows from the two above.
  if (fields.Has("gradient_dtype"))
    policy.gradient_dtype = fields.OneOf("gradient_dtype", {DType::kF32, DType::kBF16, DType::kF16});
  policy.reshard_after_forward = fields.Bool("reshard_after_forward");
  policy.reshard_root_after_forward = fields.Bool("reshard_root_after_forward");
  policy.prefetch_depth =
      static_cast<int>(fields.Whole("prefetch_depth", 0, ShardingPolicy::kMaxPrefetchDepth));
  policy.shard_optimizer_over_replicas = fields.Bool("shard_optimizer_over_replicas");
  const int ranks = shape.ranks_per_node;
  const bool fits = ranks == 0 || shape.shard_size % ranks == 0 || ranks % shape.shard_size == 0;
  if (!fits || (ranks > 0 && int64_t{shape.shard_size} * shape.replicate_size % ranks != 0)) {
    fields.FailValue("ranks_per_node", "it must fit the shard groups and the ranks");
  }
  int64_t count = 0;
  for (const Json& groups : fields.List("groups")) {
    WEFT_RETURN_IF_ERROR(fields.status());
    inputs.groups.push_back(ReadGroups(fields.Inner(groups)));
    count += inputs.groups.back().count;
  }
  if (count == 0 || count > kMaxGroups) {
    fields.FailValue("groups", absl::StrCat("it must have 1 to ", kMaxGroups, " groups"));
  }
  WEFT_RETURN_IF_ERROR(fields.status());
  return inputs;
}

absl::StatusOr<ExpectedCosts> CostsOf(const ByteInputs& inputs) {
  std::vector<FlatLayout> layouts;
  for (const ByteInputs::Groups& groups : inputs.groups) {
    const absl::StatusOr<FlatLayout> layout =
        FlatLayout::Make(inputs.policy.layout, groups.parameters, inputs.shape.shard_size, inputs.alignment);
    if (!layout.ok()) return absl::DataLossError(absl::StrCat("byte_inputs: ", layout.status().message()));
    layouts.insert(layouts.end(), static_cast<size_t>(groups.count), *layout);
  }
  ExpectedCosts costs;
  costs.step = CostsOfGroups(layouts, inputs.policy, inputs.shape);
  costs.after_evaluation = costs.step;
  ShardingPolicy without_updates = inputs.policy;
  without_updates.shard_optimizer_over_replicas = false;
  const size_t ahead =
      inputs.spans_nodes ? static_cast<size_t>(inputs.policy.PrefetchDepth()) + 1 : size_t{0};
  for (size_t group = 0; group < std::min(layouts.size(), ahead); ++group) {
    costs.after_evaluation += ForwardCostsOfGroup(layouts[group], without_updates, inputs.shape);
  }
  // No rank knows at first whether the shards of its replicas are equal: the first step gathers updates, too.
  costs.first_step = costs.after_evaluation;
  costs.first_step.all_gather_bytes +=
      costs.step.all_gather_bytes - CostsOfGroups(layouts, without_updates, inputs.shape).all_gather_bytes;
  return costs;
}

}  // namespace weft
