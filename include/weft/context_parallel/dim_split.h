// How a dim of a tensor is split over the ranks of a group, and what exchanges follow from it. Pure.
//
// Dims may be negative: -1 is the last. Sizes are elements by rank; a list that is not given is an even
// split, whose remainder goes one each to the first ranks. Errors are kInvalidArgument, and name the dim,
// what was expected and what was met.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/core/tensor_view.h"

namespace weft {

std::vector<int64_t> EvenSizes(int64_t length, int ranks);

struct DimSplit {
  int dim = 0;  // Not negative.
  std::vector<int64_t> sizes;

  // Of a tensor that is whole here.
  static absl::StatusOr<DimSplit> OfWhole(const Shape& whole, int dim, int ranks,
                                          absl::Span<const int64_t> sizes = {});
  // Of a tensor of which this rank holds a part. Without sizes all parts are as long as this one, or the
  // whole is `length` long: that is needed where an even split leaves a remainder.
  static absl::StatusOr<DimSplit> OfPart(const Shape& part, int dim, int ranks, int rank,
                                         absl::Span<const int64_t> sizes = {},
                                         std::optional<int64_t> length = std::nullopt);

  int ranks() const { return static_cast<int>(sizes.size()); }
  int64_t length() const;          // Of the whole.
  int64_t Offset(int rank) const;  // Of a rank's part.
  int64_t size(int rank) const { return sizes[static_cast<size_t>(rank)]; }
  Shape PartShape(const Shape& any, int rank) const;  // `any`: the whole's shape or a part's.
  Shape WholeShape(const Shape& any) const;
  TensorView PartOf(const TensorView& whole, int rank) const;
  // An error unless `shape` is this rank's part, or the whole. `what` begins the message.
  absl::Status CheckPart(const Shape& shape, int rank, std::string_view what) const;
  absl::Status CheckWhole(const Shape& shape, std::string_view what) const;
  // "dim 1 in parts of 3, 2, 2".
  std::string ToString() const;
};

struct AllToAllSizes {
  absl::Span<const int64_t> scatter = {};
  absl::Span<const int64_t> gather = {};
  std::optional<int64_t> gather_length = std::nullopt;  // As DimSplit::OfPart's.
};

// What an all-to-all between dims does: before, `scatter` is whole on every rank, and `gather` in parts;
// after, the other way round.
struct AllToAllPlan {
  DimSplit scatter;
  DimSplit gather;

  // `input`: of this rank. Two to five dims; the two dims must differ.
  static absl::StatusOr<AllToAllPlan> Make(const Shape& input, int scatter_dim, int gather_dim, int ranks,
                                           int rank, const AllToAllSizes& sizes = {});
  // The way back, and the gradient's way.
  AllToAllPlan Adjoint() const { return {gather, scatter}; }
};

// Documents end to end along a dim, each of which is split by itself: a rank holds its parts of all
// documents, end to end in the documents' order.
struct PackSplit {
  int dim = 0;
  std::vector<std::vector<int64_t>> sizes;  // [ranks, documents]

  // `shape`: of any rank's part, or of the whole; the table is checked against neither.
  static absl::StatusOr<PackSplit> Make(const Shape& shape, int dim, int ranks,
                                        std::vector<std::vector<int64_t>> sizes);

  int ranks() const { return static_cast<int>(sizes.size()); }
  int documents() const { return sizes.empty() ? 0 : static_cast<int>(sizes[0].size()); }
  // What ranks hold, without the order: rank 0's tokens, then rank 1's.
  DimSplit ByRank() const;
  // The pieces of a rank's part, in its order, as places in the whole.
  struct Piece {
    int64_t part_begin;
    int64_t whole_begin;
    int64_t count;
  };
  std::vector<Piece> PiecesOf(int rank) const;
};

}  // namespace weft
