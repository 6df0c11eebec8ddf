// Flat layout of a parameter group: the place of each parameter in the group's buffers, and the elements that
// each rank of the shard group owns.
//
// A group has three kinds of buffer, all counted in elements:
//
//   shard     the elements that one rank owns;
//   gathered  the shards of all ranks end to end. kRows has none: its shards are ranges of the image;
//   image     all parameters whole, each row-major and aligned.
//
// In all kinds, trainable parameters come first, ordered by replicate bucket, so that a bucket is one slice
// of a shard. Frozen parameters follow; they have no gradients. Gradients need the front of each buffer only:
//
//   gradient image  the front of the image, up to the first frozen parameter;
//   reduced part    the front of a shard, which belongs to trainable parameters. kContiguous: the part of the
//                   shard that lies in the gradient image; the first ranks have their whole shards in it, the
//                   last ones nothing. kRows: the rank's rows of trainable parameters, which differ in number
//                   between ranks. kPerParameter: of equal length on all ranks.
//
// Pure: every rank builds the same layout from the same arguments; nothing is allocated or sent.
// Thread safety: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/part_ranges.h"
#include "weft/core/tensor_view.h"

namespace weft {

enum class FlatKind : uint8_t {
  // The image is cut into equal ranges, regardless of parameter boundaries: it is the gathered buffer.
  kContiguous,
  // Every parameter is cut into ranges of whole rows (indices of dim 0), as torch.chunk cuts it: of n rows,
  // rank r of S owns those from r * ceil(n / S) on, at most ceil(n / S); the last ranks may own none. A
  // scalar is one row. The shards are a partition of the image, whose elements stay where they are. Shards
  // have no padding and differ in length.
  kRows,
  // Every parameter is cut on a dim of its own into equal chunks (the last ones short or empty). Copies
  // assemble the image from the gathered buffer (shard_copies.h), whose shards have equal length.
  kPerParameter,
};

inline constexpr FlatKind kFlatKinds[] = {FlatKind::kContiguous, FlatKind::kRows, FlatKind::kPerParameter};

// "contiguous", "rows", "per parameter".
std::string_view Name(FlatKind kind);

// True if an all-gather can write parameters to their places in the image, and a reduce-scatter can read
// gradients there, without copies.
constexpr bool IsZeroCopy(FlatKind kind) { return kind != FlatKind::kPerParameter; }
constexpr FlatKind FlatKindFor(bool zero_copy) {
  return zero_copy ? FlatKind::kContiguous : FlatKind::kPerParameter;
}

struct FlatParameter {
  Shape shape;
  int shard_dim = 0;         // For kPerParameter. Negative dims count from the end.
  int replicate_bucket = 0;  // Parameters of one bucket are all-reduced together after the reduce-scatter.
  bool trainable = true;
};

using FlatRange = ElementRange;

// The slice of a rank's shard that belongs to one replicate bucket.
struct BucketSlice {
  int bucket;
  FlatRange range;
};

// The part of one parameter that one rank owns. It is contiguous in the shard, and consists of `runs` equally
// spaced runs of contiguous elements in the parameter (more than one only for a shard dim other than 0).
struct ShardPiece {
  int parameter;         // Index in the order given to Make.
  int64_t shard_offset;  // Offset of its first element in the shard.
  int64_t start;         // Row-major index of its first element in the parameter.
  int64_t runs;
  int64_t run_length;
  int64_t run_stride;  // Distance between starts of runs, in the parameter.

  int64_t elements() const { return runs * run_length; }
};

class FlatLayout {
 public:
  // `alignment`, in elements, of parameters in the image, and of shards unless they are rows: 64 bytes in the
  // smallest dtype of the buffers.
  // Errors: kInvalidArgument (names the parameter's index and the fault).
  static absl::StatusOr<FlatLayout> Make(FlatKind kind, std::vector<FlatParameter> parameters, int shard_size,
                                         int64_t alignment);

  FlatKind kind() const { return kind_; }
  int shard_size() const { return shard_size_; }
  int64_t alignment() const { return alignment_; }
  const std::vector<FlatParameter>& parameters() const { return parameters_; }

  // True if the shards of all ranks, end to end, are the image: kContiguous, or kRows with one rank.
  bool is_end_to_end() const { return cut() == FlatKind::kContiguous; }

  int64_t shard_elements(int shard_rank) const;  // kRows: of this rank. Other kinds: of every rank.
  int64_t gathered_elements() const;
  int64_t gathered_offset(int shard_rank) const;  // Offset of a rank's shard in the gathered buffer.
  int64_t image_elements() const { return image_elements_; }
  // Elements of all parameters, without padding.
  int64_t parameter_elements() const { return parameter_elements_; }
  // True if the group has parameters and all of them are frozen.
  bool frozen() const;

  // Counts of elements with gradients: equal to those above if no parameter is frozen.
  int64_t gradient_image_elements() const { return gradient_image_elements_; }
  int64_t reduced_elements() const;  // The total over the reduced parts of all ranks.
  int64_t reduced_elements(int shard_rank) const;
  // Offset of a rank's reduced part among those of all ranks, end to end.
  int64_t reduced_offset(int shard_rank) const;
  int64_t trainable_elements() const { return trainable_elements_; }

  // Offset of a parameter in the image.
  int64_t image_offset(int parameter) const { return image_offsets_[static_cast<size_t>(parameter)]; }

  // The pieces that `shard_rank` owns, by ascending shard_offset. Parameters of which it owns nothing are
  // left out.
  std::vector<ShardPiece> Pieces(int shard_rank) const;
  // Ranges of the image that hold the shard of `shard_rank`, and of the gradient image that hold its reduced
  // part, in the order of the shard. REQUIRES: IsZeroCopy(kind()).
  std::vector<FlatRange> ImageRanges(int shard_rank) const;
  std::vector<FlatRange> ReducedRanges(int shard_rank) const;
  // One slice for each bucket that has trainable parameters; empty if the rank owns none of them. Slices
  // ascend without gaps and cover the reduced part, if there is one. All ranks list the same buckets.
  std::vector<BucketSlice> BucketSlices(int shard_rank) const;

  // Alignment gaps and padding, which no trainable parameter covers, of the gradient image and of a reduced
  // part.
  std::vector<FlatRange> GradientImageGaps() const;
  std::vector<FlatRange> ReducedGaps(int shard_rank) const;

 private:
  FlatLayout() = default;
  // kRows with one rank cuts nothing, like kContiguous.
  FlatKind cut() const {
    return kind_ == FlatKind::kRows && shard_size_ == 1 ? FlatKind::kContiguous : kind_;
  }
  void PlaceImage();
  void PlaceChunks();
  ShardPiece RangePiece(int parameter, int shard_rank) const;
  ShardPiece ChunkPiece(int parameter, int shard_rank) const;
  const FlatParameter& at(int parameter) const { return parameters_[static_cast<size_t>(parameter)]; }
  // Indices of trainable parameters, in the order of the buffers.
  absl::Span<const int> trainable_order() const {
    return absl::MakeConstSpan(order_).first(trainable_count_);
  }
  // Elements of the first `count` parameters, in the order of the buffers, that a rank owns. kRows only.
  int64_t RowElements(size_t count, int shard_rank) const;
  // The range of a shard that belongs to a trainable parameter, with the padding that follows it. `begin`:
  // its offset (kRows only).
  FlatRange ShardRange(int parameter, int shard_rank, int64_t begin) const;

  FlatKind kind_ = FlatKind::kContiguous;
  int shard_size_ = 1;
  std::vector<FlatParameter> parameters_;
  std::vector<int> order_;              // Indices of parameters, in the order of the buffers.
  size_t trainable_count_ = 0;          // The first ones of order_.
  std::vector<int64_t> image_offsets_;  // By parameter.
  std::vector<int64_t> shard_offsets_;  // By parameter; kPerParameter only.
  int64_t alignment_ = 1;
  int64_t shard_elements_ = 0;  // Not for kRows.
  int64_t image_elements_ = 0;
  int64_t parameter_elements_ = 0;
  int64_t gradient_image_elements_ = 0;
  int64_t reduced_chunk_elements_ = 0;  // kPerParameter only: of each rank's reduced part.
  int64_t trainable_elements_ = 0;
};

// The ranges of the image that each rank of a regather group of `size` keeps: rank i of it has the shards of
// shard group / `size` consecutive ranks, in the order of the image. REQUIRES: IsZeroCopy(layout.kind());
// `size` divides the shard group.
std::vector<std::vector<FlatRange>> RegatherRanges(const FlatLayout& layout, int size);

}  // namespace weft
