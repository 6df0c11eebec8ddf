#include "tests/sharding/support/group_fixture.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/core/status.h"

namespace weft::testing {

std::vector<std::shared_ptr<Parameter>> MakeParameters(const std::vector<Shape>& shapes) {
  std::vector<std::shared_ptr<Parameter>> parameters;
  for (const Shape& shape : shapes) {
    parameters.push_back(std::make_shared<Parameter>());
    parameters.back()->name = absl::StrCat("p", parameters.size() - 1);
    parameters.back()->shape = shape;
  }
  return parameters;
}

absl::Status LoadIndices(const Parameter&, int64_t start, int64_t count, float* out) {
  std::iota(out, out + count, static_cast<float>(start));
  return absl::OkStatus();
}

std::vector<float> Indices(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

ProcessGroup GroupOf(std::string name, std::vector<int> ranks, int rank) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  return {std::move(name), std::move(ranks), static_cast<int>(place)};
}

absl::StatusOr<std::unique_ptr<ParamGroup>> MakeGroup(
    CommContext& context, const std::vector<std::shared_ptr<Parameter>>& parameters,
    const ShardingPolicy& policy, const std::string& name, const std::vector<int>& buckets) {
  WEFT_RETURN_IF_ERROR(policy.Validate());
  const int bucket_count = buckets.empty() ? 1 : *std::max_element(buckets.begin(), buckets.end()) + 1;
  WEFT_ASSIGN_OR_RETURN(GroupSpec spec,
                        SpecifyGroup({name, -1, parameters}, policy, context.lanes().shard_group().size(),
                                     buckets, bucket_count));
  return ParamGroup::Create(context, std::move(spec), policy);
}

absl::StatusOr<GroupFixture> GroupFixture::Make(Bootstrap& bootstrap, int replicas,
                                                const CommContext::Options& options) {
  GroupFixture fixture;
  WEFT_ASSIGN_OR_RETURN(fixture.engine, MakeToyRank(bootstrap));
  const int rank = bootstrap.rank();
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(replicas, bootstrap.size() / replicas));
  WEFT_ASSIGN_OR_RETURN(ProcessGroup shard, mesh.Group({"shard"}, rank));
  WEFT_ASSIGN_OR_RETURN(ProcessGroup replicate, mesh.Group({"replicate"}, rank));
  WEFT_ASSIGN_OR_RETURN(fixture.context, CommContext::Create(*fixture.engine.engine, std::move(shard),
                                                             {std::move(replicate)}, options));
  return fixture;
}

absl::StatusOr<std::unique_ptr<ParamGroup>> GroupFixture::Group(
    const std::vector<std::shared_ptr<Parameter>>& parameters, const ShardingPolicy& policy,
    const std::string& name) const {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<ParamGroup> group, MakeGroup(*context, parameters, policy, name));
  WEFT_RETURN_IF_ERROR(group->Load(LoadIndices));
  return group;
}

absl::Status Gather(ParamGroup& group) {
  WEFT_RETURN_IF_ERROR(group.Unshard(Priority::kCritical));
  return group.WaitUnshard();
}

std::vector<ShardingPolicy> PolicyOfEachLayout(int regather_size) {
  std::vector<ShardingPolicy> policies;
  for (const FlatKind layout : kFlatKinds) {
    policies.emplace_back().layout = layout;
    policies.back().reshard_after_forward_size = regather_size;
  }
  return policies;
}

}  // namespace weft::testing
