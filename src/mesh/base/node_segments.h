// How the segments of a node's ranks lie in one block of memory: end to end, each 64-byte aligned.
#pragma once

#include <cstddef>
#include <vector>

#include "weft/mesh/bootstrap.h"

namespace weft::internal {

size_t NodeSegmentsBytes(size_t segment_bytes, size_t ranks);
NodeMemory NodeSegmentsAt(std::byte* base, size_t segment_bytes, const std::vector<int>& ranks);

}  // namespace weft::internal
