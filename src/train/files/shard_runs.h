// Iteration over a rank's piece of a parameter, in runs that are contiguous in the parameter and in memory.
#pragma once

#include <cstdint>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/types/span.h>

#include "weft/core/status.h"
#include "weft/sharding/shard_view.h"

namespace weft {

// Calls body(index of the run's first element in the parameter, values) for each run. Stops at the first
// error.
inline absl::Status ForEachRun(
    const ShardView& shard,
    absl::FunctionRef<absl::Status(int64_t first, absl::Span<const float> values)> body) {
  const ShardPiece& piece = shard.piece;
  for (int64_t run = 0; run < piece.runs; ++run) {
    WEFT_RETURN_IF_ERROR(body(piece.start + run * piece.run_stride,
                              {shard.data + run * piece.run_length, static_cast<size_t>(piece.run_length)}));
  }
  return absl::OkStatus();
}

}  // namespace weft
