#include "weft/sharding/flat_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/core/rounding.h"
#include "weft/core/status.h"

namespace weft {
namespace {

size_t Index(int value) { return static_cast<size_t>(value); }

// The intersection of two ranges. If it is empty, it begins at the larger begin.
FlatRange Intersect(FlatRange a, FlatRange b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max<int64_t>(0, std::min(a.end(), b.end()) - begin)};
}

// The complement of `covered`, which ascends, in [0, total).
std::vector<FlatRange> Complement(const std::vector<FlatRange>& covered, int64_t total) {
  std::vector<FlatRange> gaps;
  int64_t cursor = 0;
  for (const FlatRange& range : covered) {
    if (range.begin > cursor) gaps.push_back({cursor, range.begin - cursor});
    cursor = std::max(cursor, range.end());
  }
  if (total > cursor) gaps.push_back({cursor, total - cursor});
  return gaps;
}

// A parameter as [before, dim, after] around its shard dim. A scalar counts as one element along it.
struct Around {
  int64_t before = 1;
  int64_t dim = 1;
  int64_t after = 1;
};

Around SplitAtShardDim(const FlatParameter& parameter) {
  Around around;
  if (parameter.shape.empty()) return around;
  const size_t dim = Index(parameter.shard_dim);
  around.dim = parameter.shape[dim];
  for (size_t i = 0; i < parameter.shape.size(); ++i) {
    if (i < dim) around.before *= parameter.shape[i];
    if (i > dim) around.after *= parameter.shape[i];
  }
  return around;
}

// Validates a parameter and makes its shard dim non-negative.
absl::Status Normalize(size_t index, FlatParameter& parameter) {
  const int dims = std::max<int>(1, static_cast<int>(parameter.shape.size()));
  const auto invalid = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter ", index, " of shape ", ToString(parameter.shape), ": ", ToAbsl(what)));
  };
  if (std::any_of(parameter.shape.begin(), parameter.shape.end(), [](int64_t size) { return size < 0; })) {
    return invalid("sizes must not be negative");
  }
  if (parameter.shard_dim < -dims || parameter.shard_dim >= dims) {
    return invalid(ToStd(absl::StrCat("there is no dim ", parameter.shard_dim, " to shard")));
  }
  if (parameter.shard_dim < 0) parameter.shard_dim += dims;
  if (parameter.replicate_bucket < 0) return invalid("its replicate bucket must not be negative");
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(FlatKind kind) {
  switch (kind) {
    case FlatKind::kContiguous:
      return "contiguous";
    case FlatKind::kRows:
      return "rows";
    case FlatKind::kPerParameter:
      break;
  }
  return "per parameter";
}

absl::StatusOr<FlatLayout> FlatLayout::Make(FlatKind kind, std::vector<FlatParameter> parameters,
                                            int shard_size, int64_t alignment) {
  if (shard_size < 1 || alignment < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a layout needs a shard group and an alignment of at least 1; got ", shard_size, " and ", alignment));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (kind == FlatKind::kRows) parameters[i].shard_dim = 0;
    WEFT_RETURN_IF_ERROR(Normalize(i, parameters[i]));
  }
  FlatLayout layout;
  layout.kind_ = kind;
  layout.shard_size_ = shard_size;
  layout.alignment_ = alignment;
  layout.parameters_ = std::move(parameters);
  layout.PlaceImage();
  layout.PlaceChunks();
  return layout;
}

void FlatLayout::PlaceImage() {
  order_.resize(parameters_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [this](int a, int b) {
    return std::pair(!at(a).trainable, at(a).replicate_bucket) <
           std::pair(!at(b).trainable, at(b).replicate_bucket);
  });
  image_offsets_.resize(parameters_.size());
  for (const int parameter : order_) {
    const int64_t elements = ElementCount(at(parameter).shape);
    image_offsets_[Index(parameter)] = image_elements_;
    image_elements_ += RoundUp(elements, alignment_);
    parameter_elements_ += elements;
    if (!at(parameter).trainable) continue;
    ++trainable_count_;
    trainable_elements_ += elements;
    gradient_image_elements_ = image_elements_;
  }
  if (cut() == FlatKind::kContiguous) {
    image_elements_ = RoundUp(image_elements_, alignment_ * shard_size_);
    shard_elements_ = image_elements_ / shard_size_;
    // Reduces the padding at the end too, so that all parts are equal if no parameter is frozen.
    if (trainable_count_ == parameters_.size()) gradient_image_elements_ = image_elements_;
  }
}

void FlatLayout::PlaceChunks() {
  if (kind_ != FlatKind::kPerParameter) return;
  shard_offsets_.resize(parameters_.size());
  for (const int parameter : order_) {
    const Around around = SplitAtShardDim(at(parameter));
    shard_offsets_[Index(parameter)] = shard_elements_;
    shard_elements_ += RoundUp(around.before * CeilDiv(around.dim, shard_size_) * around.after, alignment_);
    if (at(parameter).trainable) reduced_chunk_elements_ = shard_elements_;
  }
}

bool FlatLayout::frozen() const { return !parameters_.empty() && trainable_count_ == 0; }

int64_t FlatLayout::RowElements(size_t count, int shard_rank) const {
  int64_t elements = 0;
  for (size_t i = 0; i < count; ++i) elements += ChunkPiece(order_[i], shard_rank).elements();
  return elements;
}

int64_t FlatLayout::shard_elements(int shard_rank) const {
  return cut() == FlatKind::kRows ? RowElements(order_.size(), shard_rank) : shard_elements_;
}

int64_t FlatLayout::gathered_elements() const {
  return cut() == FlatKind::kRows ? parameter_elements_ : shard_elements_ * shard_size_;
}

int64_t FlatLayout::gathered_offset(int shard_rank) const {
  if (cut() != FlatKind::kRows) return shard_rank * shard_elements_;
  int64_t offset = 0;
  for (int rank = 0; rank < shard_rank; ++rank) offset += shard_elements(rank);
  return offset;
}

int64_t FlatLayout::reduced_elements(int shard_rank) const {
  switch (cut()) {
    case FlatKind::kContiguous:
      return Intersect({shard_rank * shard_elements_, shard_elements_}, {0, gradient_image_elements_}).count;
    case FlatKind::kRows:
      return RowElements(trainable_count_, shard_rank);
    case FlatKind::kPerParameter:
      break;
  }
  return reduced_chunk_elements_;
}

int64_t FlatLayout::reduced_offset(int shard_rank) const {
  int64_t offset = 0;
  switch (cut()) {
    case FlatKind::kContiguous:
      return std::min(shard_rank * shard_elements_, gradient_image_elements_);
    case FlatKind::kRows:
      for (int rank = 0; rank < shard_rank; ++rank) offset += reduced_elements(rank);
      return offset;
    case FlatKind::kPerParameter:
      break;
  }
  return shard_rank * reduced_chunk_elements_;
}

int64_t FlatLayout::reduced_elements() const {
  switch (cut()) {
    case FlatKind::kContiguous:
      return gradient_image_elements_;
    case FlatKind::kRows:
      return trainable_elements_;
    case FlatKind::kPerParameter:
      break;
  }
  return reduced_chunk_elements_ * shard_size_;
}

std::vector<ShardPiece> FlatLayout::Pieces(int shard_rank) const {
  std::vector<ShardPiece> pieces;
  int64_t next_row = 0;  // Offset in a shard of rows.
  for (const int parameter : order_) {
    ShardPiece piece = cut() == FlatKind::kContiguous ? RangePiece(parameter, shard_rank)
                                                      : ChunkPiece(parameter, shard_rank);
    if (cut() == FlatKind::kRows) piece.shard_offset = std::exchange(next_row, next_row + piece.elements());
    if (piece.elements() > 0) pieces.push_back(piece);
  }
  return pieces;
}

std::vector<FlatRange> FlatLayout::ImageRanges(int shard_rank) const {
  if (is_end_to_end()) return {{shard_rank * shard_elements_, shard_elements_}};
  std::vector<FlatRange> ranges;
  for (const ShardPiece& piece : Pieces(shard_rank)) {
    ranges.push_back({image_offset(piece.parameter) + piece.start, piece.elements()});
  }
  return ranges;
}

std::vector<FlatRange> FlatLayout::ReducedRanges(int shard_rank) const {
  std::vector<FlatRange> ranges;
  for (const FlatRange& range : ImageRanges(shard_rank)) {
    const FlatRange reduced = Intersect(range, {0, gradient_image_elements_});
    if (reduced.count > 0) ranges.push_back(reduced);
  }
  return ranges;
}

ShardPiece FlatLayout::RangePiece(int parameter, int shard_rank) const {
  const int64_t offset = image_offset(parameter);
  const FlatRange shard{shard_rank * shard_elements_, shard_elements_};
  const FlatRange owned = Intersect({offset, ElementCount(at(parameter).shape)}, shard);
  return {parameter, owned.begin - shard.begin, owned.begin - offset, 1, owned.count, owned.count};
}

ShardPiece FlatLayout::ChunkPiece(int parameter, int shard_rank) const {
  const Around around = SplitAtShardDim(at(parameter));
  const int64_t chunk = CeilDiv(around.dim, shard_size_);
  const int64_t begin = std::min(around.dim, shard_rank * chunk);
  const int64_t run_length = (std::min(around.dim, begin + chunk) - begin) * around.after;
  const int64_t shard_offset = cut() == FlatKind::kRows ? 0 : shard_offsets_[Index(parameter)];
  return {parameter,     shard_offset, begin * around.after,
          around.before, run_length,   around.dim * around.after};
}

FlatRange FlatLayout::ShardRange(int parameter, int shard_rank, int64_t begin) const {
  if (cut() == FlatKind::kRows) return {begin, ChunkPiece(parameter, shard_rank).elements()};
  if (cut() == FlatKind::kContiguous) {
    const FlatRange shard{shard_rank * shard_elements_, shard_elements_};
    const int64_t place = image_offset(parameter);
    const bool last = parameter == trainable_order().back();
    const int64_t end =
        last ? gradient_image_elements_ : place + RoundUp(ElementCount(at(parameter).shape), alignment_);
    const FlatRange owned = Intersect({place, end - place}, shard);
    return {owned.begin - shard.begin, owned.count};
  }
  const Around around = SplitAtShardDim(at(parameter));
  const int64_t chunk = around.before * CeilDiv(around.dim, shard_size_) * around.after;
  return {shard_offsets_[Index(parameter)], RoundUp(chunk, alignment_)};
}

std::vector<BucketSlice> FlatLayout::BucketSlices(int shard_rank) const {
  std::vector<BucketSlice> slices;
  int64_t end = 0;
  for (const int parameter : trainable_order()) {
    const int bucket = at(parameter).replicate_bucket;
    if (slices.empty() || slices.back().bucket != bucket) slices.push_back({bucket, {}});
    FlatRange& slice = slices.back().range;
    const FlatRange range = ShardRange(parameter, shard_rank, end);
    if (range.count == 0) continue;
    end = range.end();
    slice = slice.count == 0 ? range : FlatRange{slice.begin, range.end() - slice.begin};
  }
  return slices;
}

std::vector<std::vector<FlatRange>> RegatherRanges(const FlatLayout& layout, int size) {
  std::vector<std::vector<FlatRange>> parts(static_cast<size_t>(size));
  const int ranks = layout.shard_size() / size;
  for (int rank = 0; rank < layout.shard_size(); ++rank) {
    std::vector<FlatRange>& part = parts[static_cast<size_t>(rank / ranks)];
    for (const FlatRange& range : layout.ImageRanges(rank)) part.push_back(range);
  }
  for (std::vector<FlatRange>& part : parts) {
    std::sort(part.begin(), part.end(),
              [](const FlatRange& a, const FlatRange& b) { return a.begin < b.begin; });
  }
  return parts;
}

std::vector<FlatRange> FlatLayout::GradientImageGaps() const {
  std::vector<FlatRange> covered;
  for (const int parameter : trainable_order()) {
    covered.push_back({image_offset(parameter), ElementCount(at(parameter).shape)});
  }
  return Complement(covered, gradient_image_elements_);
}

std::vector<FlatRange> FlatLayout::ReducedGaps(int shard_rank) const {
  std::vector<FlatRange> covered;
  for (const ShardPiece& piece : Pieces(shard_rank)) {
    if (at(piece.parameter).trainable) covered.push_back({piece.shard_offset, piece.elements()});
  }
  return Complement(covered, reduced_elements(shard_rank));
}

}  // namespace weft
