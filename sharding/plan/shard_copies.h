// Copies between whole parameters (an image) and their shards end to end (a gathered buffer), for layouts in
// which the two are not the same memory. Planned once; the dtype is converted on the way.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/core/strided_copy.h"
#include "weft/sharding/flat_layout.h"

namespace weft {

// A copy plan together with where it begins in the two buffers.
struct PlacedCopy {
  CopyPlan plan;
  int64_t source_byte;
  int64_t target_byte;
};

// Gathered buffer to image; every element of every parameter is written once, gaps of the image are not
// touched.
std::vector<PlacedCopy> PlanCopyOut(const FlatLayout& layout, DType gathered, DType image);
// Image to the shards of ranks [begin, end), end to end; the padding there is not touched.
std::vector<PlacedCopy> PlanShardCopies(const FlatLayout& layout, int begin, int end, DType dtype);
// Gradient image to the input of the reduce-scatter; the padding there is not touched.
std::vector<PlacedCopy> PlanGradientCopyIn(const FlatLayout& layout, DType image, DType gathered);

// Runs them all, target = source * scale; returns the bytes written.
int64_t RunCopies(const std::vector<PlacedCopy>& copies, const void* source, void* target,
                  float scale = 1.0F);

}  // namespace weft
