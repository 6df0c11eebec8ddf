#include "src/comm/base/slice_place.h"

#include "src/comm/base/copy_bytes.h"

namespace weft {
namespace {

// Calls body(offset, length, data) for each contiguous span of a slice of `count` elements.
template <typename Body>
void ForEachSpan(const SlicePlace& slice, int64_t count, size_t element_bytes, Body body) {
  if (slice.is_contiguous()) {
    body(int64_t{0}, count, slice.data);
    return;
  }
  ForEachSpan(slice.ranges, slice.first, count, [&](int64_t offset, int64_t length, int64_t begin) {
    body(offset, length, slice.At(begin, element_bytes));
  });
}

// The part of a slice from element `offset` on.
SlicePlace SkipElements(SlicePlace slice, int64_t offset, size_t element_bytes) {
  if (slice.is_contiguous()) {
    slice.data += static_cast<size_t>(offset) * element_bytes;
    return slice;
  }
  slice.first += offset;
  while (slice.ranges.front().end_place() <= slice.first) slice.ranges.remove_prefix(1);
  return slice;
}

}  // namespace

SlicePlace::SlicePlace(std::byte* memory, size_t element_bytes,
                       absl::Span<const PartRanges::PlacedRange> part, int64_t first_element, int64_t count,
                       const ViewTable* table)
    : data(memory), views(table) {
  const auto range = std::upper_bound(part.begin(), part.end(), first_element,
                                      [](int64_t element, const PartRanges::PlacedRange& candidate) {
                                        return element < candidate.end_place();
                                      });
  if (first_element + count <= range->end_place()) {
    data = At(range->range.begin + first_element - range->place, element_bytes);
    return;
  }
  ranges = part.subspan(static_cast<size_t>(range - part.begin()));
  first = first_element;
}

std::byte* SlicePlace::At(int64_t element, size_t element_bytes) const {
  // Views are only read. A place is mutable because it may also be a target.
  if (views != nullptr) return const_cast<std::byte*>(views->At(element));
  return data + static_cast<size_t>(element) * element_bytes;
}

void CopySlice(const SlicePlace& source, const SlicePlace& target, int64_t count, size_t element_bytes,
               bool nontemporal) {
  ForEachSpan(source, count, element_bytes, [&](int64_t offset, int64_t length, const std::byte* from) {
    const SlicePlace to = SkipElements(target, offset, element_bytes);
    ForEachSpan(to, length, element_bytes, [&](int64_t begin, int64_t run, std::byte* data) {
      const size_t size = element_bytes;
      CopyBytes(data, from + static_cast<size_t>(begin) * size, static_cast<size_t>(run) * size, nontemporal);
    });
  });
}

}  // namespace weft
