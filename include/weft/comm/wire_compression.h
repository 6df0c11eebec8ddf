// Whether it pays to compress what travels between nodes, by a measurement at the start of a run: where a
// link is slow beside the cores, the time that compression saves on it is more than what it takes of them.
//
// Collective: all ranks of the engine. It adds a lane.
#pragma once

#include <string>

#include <absl/status/statusor.h>

#include "weft/comm/comm_engine.h"
#include "weft/comm/types.h"

namespace weft {

struct WireCompressionChoice {
  WireCompression compression = WireCompression::kNone;
  std::string reason;
};

// All ranks send at once, a few MB each to a rank of another node, and compress a slice of normally
// distributed f32; the slowest of each counts. Compression is chosen where it saves at least three times the
// time that it takes. The same choice on all ranks; kNone on one node, where nothing is measured. Errors:
// those of the engine (a peer that does not come is past its deadline).
absl::StatusOr<WireCompressionChoice> ChooseWireCompression(CommEngine& engine);

}  // namespace weft
