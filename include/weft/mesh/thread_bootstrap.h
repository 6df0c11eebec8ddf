// Bootstrap over threads: each rank is a thread of one process, and the node map groups ranks into emulated
// nodes.
//
// All layers above run without MPI on it, also under sanitizers. Ranks on different emulated nodes exchange
// messages and do not share node memory.
#pragma once

#include <memory>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

// Makes one bootstrap for each rank of `nodes`. They share state, which lives until the last bootstrap is
// destroyed.
// Thread safety: each bootstrap is used by one thread at a time.
std::vector<std::unique_ptr<Bootstrap>> MakeThreadBootstraps(const NodeMap& nodes);

// Runs `body` as every rank of `nodes`, each on its own thread, and joins the threads. Returns OK, or the
// error of one rank with "rank N: " in front. kAborted follows from the error of another rank, so that other
// errors go first; of several, that of the lowest rank.
absl::Status RunThreadRanks(const NodeMap& nodes, absl::FunctionRef<absl::Status(Bootstrap&)> body);

}  // namespace weft
