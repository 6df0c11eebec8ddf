// The dtypes of a parameter group, on which its parameters must agree: they share buffers and collectives.
//
// Pure.
#pragma once

#include <string>

#include <absl/status/statusor.h>

#include "sharding/plan/parameter_views.h"
#include "weft/sharding/policy.h"

namespace weft {

// Errors: kInvalidArgument (a dtype that cannot be; parameters whose storage has different dtypes, or that
// are to be gathered, reduced, or given gradients in different ones: names the group, what differs, and the
// parameters).
absl::StatusOr<ParameterDTypes> AgreeOnDTypes(const std::string& group, const Parameters& parameters,
                                              const ShardingPolicy& policy);

}  // namespace weft
