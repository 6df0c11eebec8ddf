// Choice of wire compression by a measurement at the start of a run.
//
// Compression pays where a link is slow relative to the cores: the transfer time that it saves must exceed
// the compute time that it takes.
#pragma once

#include <string>

#include <absl/status/statusor.h>

#include "weft/comm/comm_engine.h"
#include "weft/comm/types.h"

namespace weft {

struct WireCompressionChoice {
  WireCompression wire_compression = WireCompression::kNone;
  std::string reason;  // The measured times.
};

// Chooses kLossless if compression saves more than three times the time that it takes. All ranks send 2 MiB
// at once, three times, each to a rank of another node where there is one, and compress slices of normally
// distributed f32. The fastest round of the slowest rank counts. All ranks get the same choice. On one node:
// kNone, without a measurement.
//
// Collective: all ranks of the engine. Uses the shared kControl lane of all ranks.
// Errors: those of CommEngine::SharedLane and Work::Wait.
absl::StatusOr<WireCompressionChoice> ChooseWireCompression(CommEngine& engine);

}  // namespace weft
