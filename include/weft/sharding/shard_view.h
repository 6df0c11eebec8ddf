// What a rank holds of a parameter between steps: the window through which optimizers update it, loaders fill
// it, and writers save it.
//
// Thread safety: a value; what it points to belongs to the parameter group.
#pragma once

#include <cstdint>
#include <functional>

#include <absl/status/status.h>
#include <absl/types/span.h>

#include "weft/nn/parameter.h"
#include "weft/sharding/flat_layout.h"

namespace weft {

struct ShardView {
  const Parameter* parameter;
  ShardPiece piece;  // Which elements of the parameter these are, in order.
  float* data;       // [piece.elements()], the fp32 master.
  float* grad;       // [piece.elements()], summed over all ranks; null while there are no reduced gradients.

  int64_t elements() const { return piece.elements(); }
};

// Writes elements [start, start + count) of a parameter, row-major, to `out` in fp32. A sharded model asks
// for what its rank owns and for nothing else.
using ShardLoader =
    std::function<absl::Status(const Parameter& parameter, int64_t start, int64_t count, float* out)>;

// Fills the shards' data, run by run. Errors: the loader's.
absl::Status FillShards(absl::Span<const ShardView> shards, const ShardLoader& loader);

// The parameters' own initial values (see nn/initialize.h).
ShardLoader LoadInitialValues(uint64_t seed);
// The values that the parameters hold in the caller's memory; each must have data, contiguous.
ShardLoader LoadFromParameters();

}  // namespace weft
