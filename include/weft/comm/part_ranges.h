// Part ranges: the parts of a buffer by group rank, where each part is a list of ranges of the buffer. For
// collectives whose parts do not lie end to end.
//
// The elements of a part count in the order of its ranges. Ranges of a part and of different parts do not
// overlap. They need not cover the buffer: a collective neither reads nor writes the rest.
//
// Thread safety: immutable. Operations keep a reference until they are released.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

namespace weft {

// Elements [begin, begin + count) of a buffer.
struct ElementRange {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t end() const { return begin + count; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

class PartRanges {
 public:
  // A range, and its place: the number of elements of its part that come before it.
  struct PlacedRange {
    ElementRange range;
    int64_t place = 0;
    int64_t end_place() const { return place + range.count; }
  };

  // `parts`: the ranges of each group rank. Empty ranges are left out, and adjacent ones joined. `cuts`:
  // elements in ascending order at which ranges are cut and not joined, such as the bounds of source views.
  // Errors: kInvalidArgument (a negative begin or count; ranges that overlap; names the ranks).
  static absl::StatusOr<std::shared_ptr<const PartRanges>> Make(
      absl::Span<const std::vector<ElementRange>> parts, absl::Span<const int64_t> cuts = {});

  // The table in which rank i has the part of ranks[i]; the parts of several ranks may be one. For
  // simulations in which ranks stand for others.
  std::shared_ptr<const PartRanges> Select(absl::Span<const int> ranks) const;

  int ranks() const { return static_cast<int>(parts_.size()); }
  absl::Span<const PlacedRange> part(int rank) const { return parts_[static_cast<size_t>(rank)]; }
  // Elements of each rank's part, and of all parts.
  const std::vector<int64_t>& counts() const { return counts_; }
  int64_t total() const { return total_; }
  // Length of the shortest buffer that has all ranges.
  int64_t extent() const { return extent_; }
  // Differs between different ranges with high probability.
  uint64_t hash() const { return hash_; }

 private:
  PartRanges() = default;

  std::vector<std::vector<PlacedRange>> parts_;
  std::vector<int64_t> counts_;
  int64_t total_ = 0;
  int64_t extent_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace weft
