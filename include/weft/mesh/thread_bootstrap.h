// Ranks are threads of one process, spread over as many "nodes" as the node map says: the whole engine runs
// without MPI, under sanitizers. Ranks on different nodes share no memory through the engine; they talk over
// queues.
#pragma once

#include <memory>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

// One bootstrap for each rank of `nodes`, to be used by one thread each. They share state, which lives until
// the last of them goes.
std::vector<std::unique_ptr<Bootstrap>> MakeThreadBootstraps(const NodeMap& nodes);

// Runs `body` for every rank of `nodes` on a thread of its own and joins them. Returns the first error by
// rank.
absl::Status RunThreadRanks(const NodeMap& nodes, absl::FunctionRef<absl::Status(Bootstrap&)> body);

}  // namespace weft
