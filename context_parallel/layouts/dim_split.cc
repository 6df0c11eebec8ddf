#include "weft/context_parallel/dim_split.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "weft/context_parallel/sequence_layout.h"
#include "weft/core/status.h"

namespace weft {
namespace {

absl::StatusOr<int> ResolveDim(const Shape& shape, int dim) {
  const int dims = static_cast<int>(shape.size());
  if (dim >= -dims && dim < dims) return dim < 0 ? dim + dims : dim;
  return absl::InvalidArgumentError(absl::StrCat("dim ", dim, " is not one of a tensor of shape ",
                                                 ToString(shape), ": give one from ", -dims, " to ",
                                                 dims - 1));
}

absl::Status CheckSizes(absl::Span<const int64_t> sizes, int ranks, int dim) {
  if (static_cast<int>(sizes.size()) != ranks) {
    return absl::InvalidArgumentError(absl::StrCat("dim ", dim, ": ", sizes.size(), " sizes for a group of ",
                                                   ranks, " ranks: give one for each"));
  }
  for (const int64_t size : sizes) {
    if (size < 0) return absl::InvalidArgumentError(absl::StrCat("dim ", dim, ": a size of ", size));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int64_t> EvenSizes(int64_t length, int ranks) {
  std::vector<int64_t> sizes;
  sizes.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) sizes.push_back(EvenPart(length, ranks, rank).count);
  return sizes;
}

absl::StatusOr<DimSplit> DimSplit::OfWhole(const Shape& whole, int dim, int ranks,
                                           absl::Span<const int64_t> sizes) {
  WEFT_ASSIGN_OR_RETURN(const int at, ResolveDim(whole, dim));
  const int64_t length = whole[static_cast<size_t>(at)];
  if (sizes.empty()) return DimSplit{at, EvenSizes(length, ranks)};
  WEFT_RETURN_IF_ERROR(CheckSizes(sizes, ranks, dim));
  DimSplit split{at, {sizes.begin(), sizes.end()}};
  WEFT_RETURN_IF_ERROR(split.CheckWhole(whole, "split"));
  return split;
}

absl::StatusOr<DimSplit> DimSplit::OfPart(const Shape& part, int dim, int ranks, int rank,
                                          absl::Span<const int64_t> sizes, std::optional<int64_t> length) {
  WEFT_ASSIGN_OR_RETURN(const int at, ResolveDim(part, dim));
  DimSplit split{at, {}};
  if (!sizes.empty()) {
    WEFT_RETURN_IF_ERROR(CheckSizes(sizes, ranks, dim));
    split.sizes.assign(sizes.begin(), sizes.end());
    if (length && split.length() != *length) {
      return absl::InvalidArgumentError(absl::StrCat("dim ", dim, ": sizes ", absl::StrJoin(sizes, ", "),
                                                     " add up to ", split.length(), ", not to the length of ",
                                                     *length));
    }
  } else {
    const int64_t own = part[static_cast<size_t>(at)];
    split.sizes = EvenSizes(length.value_or(own * ranks), ranks);
  }
  WEFT_RETURN_IF_ERROR(split.CheckPart(part, rank, "gather"));
  return split;
}

DimSplit DimSplit::ByRank(const SequenceLayout& layout, int dim) {
  DimSplit split{dim, {}};
  for (int rank = 0; rank < layout.ranks(); ++rank) split.sizes.push_back(layout.TokensOf(rank));
  return split;
}

int64_t DimSplit::length() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

int64_t DimSplit::Offset(int rank) const {
  return std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
}

Shape DimSplit::PartShape(const Shape& any, int rank) const {
  Shape shape = any;
  shape[static_cast<size_t>(dim)] = size(rank);
  return shape;
}

Shape DimSplit::WholeShape(const Shape& any) const {
  Shape shape = any;
  shape[static_cast<size_t>(dim)] = length();
  return shape;
}

TensorView DimSplit::PartOf(const TensorView& whole, int rank) const {
  return whole.Slice(dim, Offset(rank), size(rank));
}

absl::Status DimSplit::CheckPart(const Shape& shape, int rank, std::string_view what) const {
  if (dim < static_cast<int>(shape.size()) && shape[static_cast<size_t>(dim)] == size(rank)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(what), ": ", ToString(), "; rank ", rank, " has a tensor of shape ", weft::ToString(shape),
      " instead. If the parts differ, give the sizes or the length "
      "of the whole"));
}

absl::Status DimSplit::CheckWhole(const Shape& shape, std::string_view what) const {
  if (dim < static_cast<int>(shape.size()) && shape[static_cast<size_t>(dim)] == length()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(what), ": ", ToString(), " add up to ", length(),
                                                 "; the tensor to split has shape ", weft::ToString(shape)));
}

std::string DimSplit::ToString() const {
  return absl::StrCat("dim ", dim, " in parts of ", absl::StrJoin(sizes, ", "));
}

absl::StatusOr<AllToAllPlan> AllToAllPlan::Make(const Shape& input, int scatter_dim, int gather_dim,
                                                int ranks, int rank, const AllToAllSizes& sizes) {
  constexpr size_t kFewestDims = 2;
  constexpr size_t kMostDims = 5;
  if (input.size() < kFewestDims || input.size() > kMostDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("all_to_all of a tensor of shape ", ToString(input), ": it needs two to five dims"));
  }
  AllToAllPlan plan;
  WEFT_ASSIGN_OR_RETURN(plan.scatter, DimSplit::OfWhole(input, scatter_dim, ranks, sizes.scatter));
  WEFT_ASSIGN_OR_RETURN(plan.gather,
                        DimSplit::OfPart(input, gather_dim, ranks, rank, sizes.gather, sizes.gather_length));
  if (plan.scatter.dim != plan.gather.dim) return plan;
  return absl::InvalidArgumentError(absl::StrCat("all_to_all scatters and gathers the same dim, ",
                                                 scatter_dim, " and ", gather_dim, " of a tensor of shape ",
                                                 ToString(input)));
}

absl::StatusOr<PackSplit> PackSplit::Make(const Shape& shape, int dim, int ranks,
                                          std::vector<std::vector<int64_t>> sizes) {
  PackSplit pack;
  WEFT_ASSIGN_OR_RETURN(pack.dim, ResolveDim(shape, dim));
  if (static_cast<int>(sizes.size()) != ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pack's table of sizes has ", sizes.size(), " rows for a group of ", ranks, " ranks"));
  }
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    if (sizes[rank].size() != sizes[0].size()) {
      return absl::InvalidArgumentError(absl::StrCat("a pack's table of sizes has ", sizes[rank].size(),
                                                     " documents for rank ", rank, ", ", sizes[0].size(),
                                                     " for rank 0"));
    }
    for (const int64_t size : sizes[rank]) {
      if (size >= 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("a pack's table of sizes has ", size, " for rank ", rank));
    }
  }
  pack.sizes = std::move(sizes);
  return pack;
}

PackSplit PackSplit::Of(const SequenceLayout& layout, int dim) {
  std::vector<std::pair<TokenRange, size_t>> ranges;  // With their ranks.
  const auto ranks = static_cast<size_t>(layout.ranks());
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (const TokenRange& range : layout.RangesOf(static_cast<int>(rank))) ranges.emplace_back(range, rank);
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  PackSplit pack{dim, std::vector<std::vector<int64_t>>(ranks, std::vector<int64_t>(ranges.size(), 0))};
  for (size_t document = 0; document < ranges.size(); ++document) {
    pack.sizes[ranges[document].second][document] = ranges[document].first.count;
  }
  return pack;
}

DimSplit PackSplit::ByRank() const {
  DimSplit split{dim, {}};
  for (const std::vector<int64_t>& row : sizes) {
    split.sizes.push_back(std::accumulate(row.begin(), row.end(), int64_t{0}));
  }
  return split;
}

std::vector<std::vector<PackSplit::Piece>> PackSplit::PiecesByRank() const {
  // Offset in the whole of the next rank's part of each document: at first the begin of the document.
  std::vector<int64_t> next(static_cast<size_t>(documents()), 0);
  for (const std::vector<int64_t>& row : sizes) {
    std::transform(row.begin(), row.end(), next.begin(), next.begin(), std::plus<>());
  }
  std::exclusive_scan(next.begin(), next.end(), next.begin(), int64_t{0});
  std::vector<std::vector<Piece>> pieces(sizes.size());
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    int64_t part = 0;
    for (size_t document = 0; document < next.size(); ++document) {
      const int64_t count = sizes[rank][document];
      if (count == 0) continue;
      pieces[rank].push_back({part, next[document], count});
      part += count;
      next[document] += count;
    }
  }
  return pieces;
}

}  // namespace weft
