// View of the part of a parameter that one rank holds between steps. Optimizers update it, loaders fill it,
// and checkpoints save it.
//
// Thread safety: a value. The memory belongs to the parameter group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <absl/status/status.h>
#include <absl/types/span.h>

#include "weft/core/dtype.h"
#include "weft/nn/parameter.h"
#include "weft/sharding/flat_layout.h"

namespace weft {

// Place for a shard's elements in the dtype of all-gathers. An update that sets every element of a shard may
// write it in the same pass, and then sets `is_written`. Otherwise the group casts the shard later, in a pass
// of its own.
struct ShardCast {
  DType dtype;
  void* data;  // [piece.elements()]
  bool is_written = false;
};

struct ShardView {
  const Parameter* parameter;
  ShardPiece piece;  // Elements of the parameter, in order.
  float* data;       // [piece.elements()], part of the fp32 master.
  // [piece.elements()], summed over all ranks; null while there are no reduced gradients, and for a parameter
  // without a gradient: frozen, or unused (UnusedGradients).
  float* grad;
  // Set only in an update of UpdateShards, and valid until it returns. Null: none.
  ShardCast* cast = nullptr;

  int64_t elements() const { return piece.elements(); }
};

// The same for a group whose master may be in f64: `data` and `grad` are of its master dtype.
struct MasterView {
  const Parameter* parameter;
  ShardPiece piece;
  std::byte* data;
  std::byte* grad;

  int64_t elements() const { return piece.elements(); }
};

// Updates shards, for example an optimizer's step over them.
using ShardUpdate = std::function<absl::Status(absl::Span<const ShardView> shards)>;

// Writes elements [start, start + count) of a parameter, row-major, to `out` in fp32. A sharded model
// requests only the elements that its rank owns.
using ShardLoader =
    std::function<absl::Status(const Parameter& parameter, int64_t start, int64_t count, float* out)>;

// Fills the data of the shards, run by run.
// Errors: the loader's.
absl::Status FillShards(absl::Span<const ShardView> shards, const ShardLoader& loader);

// Loads the parameters' initial values (see nn/initialize.h).
ShardLoader LoadInitialValues(uint64_t seed);
// Loads the values that the parameters hold in the caller's memory.
// REQUIRES: each has contiguous data.
ShardLoader LoadFromParameters();

}  // namespace weft
