// Dtypes of a parameter group. Its parameters share buffers and collectives, so they must agree on them.
//
// Pure.
#pragma once

#include <string>

#include <absl/status/statusor.h>

#include "sharding/plan/parameter_views.h"
#include "weft/sharding/policy.h"

namespace weft {

// Errors: kInvalidArgument (a dtype that is not allowed; parameters with different original, all-gather,
// reduce, master or gradient dtypes: names the group, the kind of dtype, and the parameters).
absl::StatusOr<ParameterDTypes> AgreeOnDTypes(const std::string& group, const Parameters& parameters,
                                              const ShardingPolicy& policy);

}  // namespace weft
