// Layout of a node's segments in one block of memory: contiguous in rank order, each 64-byte aligned.
#pragma once

#include <cstddef>
#include <vector>

#include "weft/mesh/bootstrap.h"

namespace weft::internal {

// Size of the block for `ranks` segments.
size_t NodeSegmentsBytes(size_t segment_bytes, size_t ranks);
// The segments of `ranks` in the block at `base`.
NodeMemory NodeSegmentsAt(std::byte* base, size_t segment_bytes, const std::vector<int>& ranks);

}  // namespace weft::internal
