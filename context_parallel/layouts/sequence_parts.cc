#include "weft/context_parallel/sequence_parts.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

absl::StatusOr<int> FindDim(const TensorView& view, int seq_dim) {
  const int dims = static_cast<int>(view.shape.size());
  if (seq_dim >= -dims && seq_dim < dims) return seq_dim < 0 ? seq_dim + dims : seq_dim;
  return absl::InvalidArgumentError(absl::StrCat("a tensor ", ToString(view.shape), " has no sequence dim ",
                                                 seq_dim, ": name one of its ", dims, " dims"));
}

int64_t SizeAlong(const TensorView& view, int dim) { return view.shape[static_cast<size_t>(dim)]; }

}  // namespace

absl::StatusOr<int> CheckWhole(const TensorView& view, int seq_dim, const SequenceLayout& layout) {
  WEFT_ASSIGN_OR_RETURN(const int dim, FindDim(view, seq_dim));
  if (SizeAlong(view, dim) == layout.tokens()) return dim;
  return absl::InvalidArgumentError(absl::StrCat(
      "a tensor ", ToString(view.shape), " has ", SizeAlong(view, dim), " tokens along dim ", dim,
      ", but the layout splits ", layout.tokens(), ": pass the whole sequence, or a layout of its length"));
}

absl::StatusOr<int> CheckPart(const TensorView& view, int seq_dim, const SequenceLayout& layout, int rank) {
  WEFT_ASSIGN_OR_RETURN(const int dim, FindDim(view, seq_dim));
  if (SizeAlong(view, dim) == layout.TokensOf(rank)) return dim;
  return absl::InvalidArgumentError(absl::StrCat(
      "a tensor ", ToString(view.shape), " has ", SizeAlong(view, dim), " tokens along dim ", dim,
      ", but rank ", rank, " of the layout holds ", layout.TokensOf(rank), ": pass the part of that rank"));
}

absl::StatusOr<Tensor> ExtractPart(const TensorView& whole, int seq_dim, const SequenceLayout& layout,
                                   int rank) {
  WEFT_ASSIGN_OR_RETURN(const int dim, CheckWhole(whole, seq_dim, layout));
  Shape shape = whole.shape;
  shape[static_cast<size_t>(dim)] = layout.TokensOf(rank);
  Tensor part = Tensor::Empty(whole.dtype, std::move(shape));
  int64_t at = 0;
  for (const TokenRange& range : layout.RangesOf(rank)) {
    WEFT_RETURN_IF_ERROR(
        StridedCopy(whole.Slice(dim, range.begin, range.count), part.view().Slice(dim, at, range.count)));
    at += range.count;
  }
  return part;
}

absl::Status InsertPart(const TensorView& part, int seq_dim, const SequenceLayout& layout, int rank,
                        const TensorView& whole) {
  WEFT_ASSIGN_OR_RETURN(const int dim, CheckWhole(whole, seq_dim, layout));
  WEFT_RETURN_IF_ERROR(CheckPart(part, seq_dim, layout, rank).status());
  if (part.dtype != whole.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("a part in ", ToAbsl(Name(part.dtype)),
                                                   " does not fit a tensor in ", ToAbsl(Name(whole.dtype))));
  }
  int64_t at = 0;
  for (const TokenRange& range : layout.RangesOf(rank)) {
    WEFT_RETURN_IF_ERROR(
        StridedCopy(part.Slice(dim, at, range.count), whole.Slice(dim, range.begin, range.count)));
    at += range.count;
  }
  return absl::OkStatus();
}

}  // namespace weft
