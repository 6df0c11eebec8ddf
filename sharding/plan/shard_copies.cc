#include "sharding/plan/shard_copies.h"

#include <cstddef>
#include <utility>

#include "weft/core/status.h"

namespace weft {
namespace {

// Source and target of a piece: contiguous in the gathered buffer, strided runs in the image.
struct PieceEnds {
  TensorView gathered;
  int64_t gathered_element;
  TensorView image;
  int64_t image_element;
};

// `shard_start`: offset of the shard that holds the piece.
PieceEnds EndsOf(const FlatLayout& layout, int64_t shard_start, const ShardPiece& piece, DType gathered,
                 DType image) {
  const Shape shape = {piece.runs, piece.run_length};
  PieceEnds ends;
  ends.gathered = TensorView::Contiguous(nullptr, gathered, shape);
  ends.gathered_element = shard_start + piece.shard_offset;
  ends.image = {nullptr, image, shape, {piece.run_stride, 1}};
  ends.image_element = layout.image_offset(piece.parameter) + piece.start;
  return ends;
}

PlacedCopy Place(const TensorView& source, int64_t source_element, const TensorView& target,
                 int64_t target_element) {
  absl::StatusOr<CopyPlan> plan = CopyPlan::Make(source, target);
  WEFT_CHECK(plan.ok(), ToStd(plan.status().message()));
  return {*std::move(plan), BytesOf(source_element, source.dtype), BytesOf(target_element, target.dtype)};
}

}  // namespace

std::vector<PlacedCopy> PlanCopyOut(const FlatLayout& layout, DType gathered, DType image) {
  std::vector<PlacedCopy> copies;
  for (int rank = 0; rank < layout.shard_size(); ++rank) {
    for (const ShardPiece& piece : layout.Pieces(rank)) {
      const PieceEnds ends = EndsOf(layout, layout.gathered_offset(rank), piece, gathered, image);
      copies.push_back(Place(ends.gathered, ends.gathered_element, ends.image, ends.image_element));
    }
  }
  return copies;
}

std::vector<PlacedCopy> PlanShardCopies(const FlatLayout& layout, int begin, int end, DType dtype) {
  std::vector<PlacedCopy> copies;
  for (int rank = begin; rank < end; ++rank) {
    for (const ShardPiece& piece : layout.Pieces(rank)) {
      const int64_t start = layout.gathered_offset(rank) - layout.gathered_offset(begin);
      const PieceEnds ends = EndsOf(layout, start, piece, dtype, dtype);
      copies.push_back(Place(ends.image, ends.image_element, ends.gathered, ends.gathered_element));
    }
  }
  return copies;
}

std::vector<PlacedCopy> PlanGradientCopyIn(const FlatLayout& layout, DType image, DType gathered) {
  std::vector<PlacedCopy> copies;
  for (int rank = 0; rank < layout.shard_size(); ++rank) {
    for (const ShardPiece& piece : layout.Pieces(rank)) {
      if (!layout.parameters()[static_cast<size_t>(piece.parameter)].trainable) continue;
      const PieceEnds ends = EndsOf(layout, layout.reduced_offset(rank), piece, gathered, image);
      copies.push_back(Place(ends.image, ends.image_element, ends.gathered, ends.gathered_element));
    }
  }
  return copies;
}

int64_t RunCopies(const std::vector<PlacedCopy>& copies, const void* source, void* target, double scale) {
  int64_t bytes = 0;
  for (const PlacedCopy& copy : copies) {
    copy.plan.Run(static_cast<const std::byte*>(source) + copy.source_byte,
                  static_cast<std::byte*>(target) + copy.target_byte, scale);
    bytes += BytesOf(copy.plan.elements(), copy.plan.target_dtype);
  }
  return bytes;
}

}  // namespace weft
