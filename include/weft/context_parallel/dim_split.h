// Splits of a tensor dim over the ranks of a group, and the plans of exchanges between them. Pure.
//
// Dims may be negative: -1 is the last. Sizes are in elements, by rank. Without a list of sizes the split is
// even, and the first ranks take the remainder, one element each. Errors are kInvalidArgument; they name the
// dim, the expected and the actual sizes.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/context_parallel/sequence_layout.h"
#include "weft/core/tensor_view.h"

namespace weft {

std::vector<int64_t> EvenSizes(int64_t length, int ranks);

struct DimSplit {
  int dim = 0;  // Not negative.
  std::vector<int64_t> sizes;

  // Split of a tensor that this rank holds whole.
  static absl::StatusOr<DimSplit> OfWhole(const Shape& whole, int dim, int ranks,
                                          absl::Span<const int64_t> sizes = {});
  // Split of a tensor of which this rank holds a part. Without `sizes`, the whole has `length` elements along
  // the dim; without `length`, all parts are as long as this one. Give `length` if an even split leaves a
  // remainder.
  static absl::StatusOr<DimSplit> OfPart(const Shape& part, int dim, int ranks, int rank,
                                         absl::Span<const int64_t> sizes = {},
                                         std::optional<int64_t> length = std::nullopt);

  // The tokens of each rank, in rank order.
  static DimSplit ByRank(const SequenceLayout& layout, int dim);

  int ranks() const { return static_cast<int>(sizes.size()); }
  int64_t length() const;          // Length of the whole.
  int64_t Offset(int rank) const;  // Offset of a rank's part.
  int64_t size(int rank) const { return sizes[static_cast<size_t>(rank)]; }
  // `any`: the shape of the whole or of a part.
  Shape PartShape(const Shape& any, int rank) const;
  Shape WholeShape(const Shape& any) const;
  TensorView PartOf(const TensorView& whole, int rank) const;
  // Return an error unless `shape` is that of this rank's part, or of the whole. `what` begins the message.
  absl::Status CheckPart(const Shape& shape, int rank, std::string_view what) const;
  absl::Status CheckWhole(const Shape& shape, std::string_view what) const;
  // "dim 1 in parts of 3, 2, 2".
  std::string ToString() const;
};

struct AllToAllSizes {
  absl::Span<const int64_t> scatter = {};
  absl::Span<const int64_t> gather = {};
  std::optional<int64_t> gather_length = std::nullopt;  // `length` of DimSplit::OfPart.
};

// Plan of an all-to-all between two dims. Before it, every rank holds dim `scatter` whole and a part of dim
// `gather`; after it, a part of `scatter` and `gather` whole.
struct AllToAllPlan {
  DimSplit scatter;
  DimSplit gather;

  // `input`: the shape on this rank, of two to five dims. The two dims must differ.
  static absl::StatusOr<AllToAllPlan> Make(const Shape& input, int scatter_dim, int gather_dim, int ranks,
                                           int rank, const AllToAllSizes& sizes = {});
  // The inverse exchange, which is also that of the gradient.
  AllToAllPlan Adjoint() const { return {gather, scatter}; }
};

// Split of a pack of documents that lie end to end along a dim. Each document is split on its own; a rank
// holds its parts of all documents, end to end in the order of the documents.
struct PackSplit {
  int dim = 0;
  std::vector<std::vector<int64_t>> sizes;  // [ranks, documents]

  // `shape`: the shape of the whole or of any part. Its length along the dim is not compared with `sizes`.
  static absl::StatusOr<PackSplit> Make(const Shape& shape, int dim, int ranks,
                                        std::vector<std::vector<int64_t>> sizes);
  // The split of a layout, as a pack in which each range of the sequence that one rank holds is a document.
  static PackSplit Of(const SequenceLayout& layout, int dim);

  int ranks() const { return static_cast<int>(sizes.size()); }
  int documents() const { return sizes.empty() ? 0 : static_cast<int>(sizes[0].size()); }
  // Split of the same tokens in rank order: rank 0's tokens, then rank 1's.
  DimSplit ByRank() const;
  // A range of a rank's part and its offset in the whole.
  struct Piece {
    int64_t part_begin;
    int64_t whole_begin;
    int64_t count;
  };
  // The pieces of each rank's part, in its order. Takes time in proportion to the table of sizes.
  std::vector<std::vector<Piece>> PiecesByRank() const;
};

}  // namespace weft
