// What a parameter group consists of, before it has any memory.
//
// Pure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/nn/parameter.h"
#include "weft/sharding/flat_layout.h"
#include "weft/sharding/policy.h"

namespace weft {

struct GroupSpec {
  std::string name;
  std::vector<std::shared_ptr<Parameter>> parameters;
  ParameterDTypes dtypes;
  FlatLayout layout;
};

// `buckets`: as for ParamGroup::Create, below `bucket_count`. Errors: its own.
absl::StatusOr<GroupSpec> SpecifyGroup(std::string name, std::vector<std::shared_ptr<Parameter>> parameters,
                                       const ShardingPolicy& policy, int shard_size,
                                       const std::vector<int>& buckets, int bucket_count);

}  // namespace weft
