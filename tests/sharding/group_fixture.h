// A rank of replicas of a shard group, and parameter groups on it, for tests below the level of modules.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "sharding/group/param_group.h"
#include "sharding/pipeline/comm_context.h"
#include "tests/sharding/toy_training.h"

namespace weft::testing {

// "p0", "p1", … of these shapes.
std::vector<std::shared_ptr<Parameter>> MakeParameters(const std::vector<Shape>& shapes);

// Element i of every parameter holds i.
absl::Status LoadIndices(const Parameter& parameter, int64_t start, int64_t count, float* out);
std::vector<float> Indices(int64_t count);

ProcessGroup GroupOf(std::string name, std::vector<int> ranks, int rank);

// A group of these parameters, not loaded. `buckets`: see SpecifyGroup. Errors: those of the policy and the
// group.
absl::StatusOr<std::unique_ptr<ParamGroup>> MakeGroup(
    CommContext& context, const std::vector<std::shared_ptr<Parameter>>& parameters,
    const ShardingPolicy& policy = {}, const std::string& name = "group",
    const std::vector<int>& buckets = {});

// Ranks are replicate-major: all of them, cut into `replicas` shard groups of neighbours.
struct GroupFixture {
  RankEngine engine;
  std::unique_ptr<CommContext> context;

  static absl::StatusOr<GroupFixture> Make(Bootstrap& bootstrap, int replicas = 1,
                                           const CommContext::Options& options = {});
  // Loaded with indices.
  absl::StatusOr<std::unique_ptr<ParamGroup>> Group(const std::vector<std::shared_ptr<Parameter>>& parameters,
                                                    const ShardingPolicy& policy = {},
                                                    const std::string& name = "group") const;
};

absl::Status Gather(ParamGroup& group);

// With zero copy, and without.
std::vector<ShardingPolicy> BothKinds();

}  // namespace weft::testing
