// Fixture of one rank with an engine and a context, for tests of parameter groups without modules.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "sharding/group/param_group.h"
#include "sharding/pipeline/comm_context.h"
#include "tests/sharding/support/toy_training.h"

namespace weft::testing {

// Parameters "p0", "p1", … of these shapes.
std::vector<std::shared_ptr<Parameter>> MakeParameters(const std::vector<Shape>& shapes);

// Loader that sets element i of every parameter to i.
absl::Status LoadIndices(const Parameter& parameter, int64_t start, int64_t count, float* out);
std::vector<float> Indices(int64_t count);

ProcessGroup GroupOf(std::string name, std::vector<int> ranks, int rank);

// Creates a group without loading it. `buckets`: see SpecifyGroup. Errors: of ShardingPolicy::Validate,
// SpecifyGroup and ParamGroup::Create.
absl::StatusOr<std::unique_ptr<ParamGroup>> MakeGroup(
    CommContext& context, const std::vector<std::shared_ptr<Parameter>>& parameters,
    const ShardingPolicy& policy = {}, const std::string& name = "group",
    const std::vector<int>& buckets = {});

// Ranks are replicate-major: `replicas` shard groups of consecutive ranks.
struct GroupFixture {
  RankEngine engine;
  std::unique_ptr<CommContext> context;

  static absl::StatusOr<GroupFixture> Make(Bootstrap& bootstrap, int replicas = 1,
                                           const CommContext::Options& options = {});
  // Creates a group and loads it with LoadIndices.
  absl::StatusOr<std::unique_ptr<ParamGroup>> Group(const std::vector<std::shared_ptr<Parameter>>& parameters,
                                                    const ShardingPolicy& policy = {},
                                                    const std::string& name = "group") const;
};

// Unshards the group and waits for it.
absl::Status Gather(ParamGroup& group);

// A default policy with each layout. `regather_size`: ShardingPolicy::reshard_after_forward_size.
std::vector<ShardingPolicy> PolicyOfEachLayout(int regather_size = 0);

}  // namespace weft::testing
