// Source views: memory that stands for ranges of a buffer which does not exist as one block. For collectives
// whose input lies where it was computed, such as the gradients of several parameters.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/types/span.h>

#include "weft/comm/part_ranges.h"

namespace weft {

struct SourceView {
  ElementRange range;  // Elements of the buffer.
  const void* data;    // They lie end to end here. Null: they are zeros.
};

// The first elements of the views: cuts for PartRanges, so that no range lies in two views.
inline std::vector<int64_t> CutsOf(absl::Span<const SourceView> views) {
  std::vector<int64_t> cuts;
  cuts.reserve(views.size());
  for (const SourceView& view : views) cuts.push_back(view.range.begin);
  return cuts;
}

}  // namespace weft
