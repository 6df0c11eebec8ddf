// Comparison of the values that replicas have loaded.
//
// Replicas add up their gradients and then update their weights alike. Weights that differ at the start would
// differ for ever, without any error.
#pragma once

#include <memory>
#include <vector>

#include <absl/status/status.h>
#include <absl/time/time.h>
#include <absl/types/span.h>

#include "sharding/group/param_group.h"
#include "weft/mesh/bootstrap.h"

namespace weft {

// OK if `loaded` is OK on all ranks, and replicas hold the same values, compared by hashes. `groups`: those
// of this rank, with their values; read if `loaded` is OK. Simulated ranks of mirrored nodes are not
// compared.
// Errors: kInvalidArgument (names a parameter and two ranks), those of AgreeOnStatus.
// Collective: all ranks of `bootstrap`.
absl::Status AgreeOnReplicas(Bootstrap& bootstrap, absl::Span<const std::unique_ptr<ParamGroup>> groups,
                             const absl::Status& loaded, absl::Duration timeout);

}  // namespace weft
