// When the gradients of a step of several microbatches are exchanged.
//
//                     reduce-scatters   all-reduces   memory for what accumulates
//   kLast             1                 1             full gradients of every group
//   kReduceScatter    each microbatch   1             the rank's shards
//   kEach             each microbatch   each          the rank's shards
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

enum class GradientSync : uint8_t { kLast, kReduceScatter, kEach };

// "last", "reduce-scatter", "each".
std::string_view Name(GradientSync sync);

}  // namespace weft
