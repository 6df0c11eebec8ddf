// Copies between an image (whole parameters) and a gathered buffer (shards end to end).
//
// For layouts in which the two are different memory. Copies are planned once and convert the dtype on the
// way.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/core/strided_copy.h"
#include "weft/sharding/flat_layout.h"

namespace weft {

// A copy plan and its offsets in the two buffers.
struct PlacedCopy {
  CopyPlan plan;
  int64_t source_byte;
  int64_t target_byte;
};

// From gathered buffer to image. Writes every element of every parameter once, and no gap of the image.
std::vector<PlacedCopy> PlanCopyOut(const FlatLayout& layout, DType gathered, DType image);
// From image to the shards of ranks [begin, end), end to end. Writes no padding.
std::vector<PlacedCopy> PlanShardCopies(const FlatLayout& layout, int begin, int end, DType dtype);
// From gradient image to the input of the reduce-scatter. Writes no padding.
std::vector<PlacedCopy> PlanGradientCopyIn(const FlatLayout& layout, DType image, DType gathered);

// Runs all copies, target = source * scale. Returns the bytes written.
int64_t RunCopies(const std::vector<PlacedCopy>& copies, const void* source, void* target,
                  double scale = 1.0);

}  // namespace weft
