// Place of a slice in memory: end to end, or in several ranges of a buffer, which may lie in views.
//
// Pure. Thread safety: values and free functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <absl/types/span.h>

#include "src/comm/base/view_table.h"
#include "weft/comm/part_ranges.h"

namespace weft {

struct SlicePlace {
  // Implicit: most slices lie end to end.
  SlicePlace(std::byte* memory) : data(memory) {}
  // Elements from `first` on of the part whose ranges of the buffer `memory` are `part`. Reduces to the
  // address of the first element if one range has all `count` elements. `table`: of a buffer in views,
  // instead of `memory`. REQUIRES: the part has the elements; no range lies in two views.
  SlicePlace(std::byte* memory, size_t element_bytes, absl::Span<const PartRanges::PlacedRange> part,
             int64_t first, int64_t count, const ViewTable* table = nullptr);

  bool is_contiguous() const { return ranges.empty(); }
  // Address of an element of the buffer. REQUIRES: !is_contiguous().
  std::byte* At(int64_t element, size_t element_bytes) const;

  std::byte* data;                   // First element of a contiguous slice, else the buffer.
  const ViewTable* views = nullptr;  // Instead of the buffer at `data`. Null: none.
  // The ranges of the part from that of the first element on. Empty: the slice is contiguous.
  absl::Span<const PartRanges::PlacedRange> ranges = {};
  int64_t first = 0;  // Number of the slice's first element in the part.
};

// Calls body(offset, length, begin) for each contiguous span of elements [first, first + count) of a part, in
// order: elements [begin, begin + length) of the buffer, after `offset` others. `ranges`: those of the part,
// from that of the first element on.
template <typename Body>
void ForEachSpan(absl::Span<const PartRanges::PlacedRange> ranges, int64_t first, int64_t count, Body body) {
  int64_t offset = 0;
  for (auto range = ranges.begin(); offset < count; ++range) {
    const int64_t within = first + offset - range->place;
    const int64_t length = std::min(range->range.count - within, count - offset);
    body(offset, length, range->range.begin + within);
    offset += length;
  }
}

// Copies a slice of `count` elements. `nontemporal`: as CopyBytes.
void CopySlice(const SlicePlace& source, const SlicePlace& target, int64_t count, size_t element_bytes,
               bool nontemporal);

}  // namespace weft
