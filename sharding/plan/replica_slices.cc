#include "sharding/plan/replica_slices.h"

#include <algorithm>
#include <numeric>

#include "weft/comm/types.h"

namespace weft {

FlatRange ReplicaSlice::PartOf(int rank) const {
  if (counts.empty()) return range;
  const int64_t before = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  return {range.begin + before, counts[static_cast<size_t>(rank)]};
}

std::vector<ReplicaSlice> WholeSlices(const FlatLayout& layout, int shard_rank) {
  std::vector<ReplicaSlice> slices;
  for (const BucketSlice& slice : layout.BucketSlices(shard_rank)) {
    slices.push_back({slice.bucket, slice.range, {}, slice.range});
  }
  return slices;
}

std::vector<ReplicaSlice> DividedSlices(const FlatLayout& layout, int shard_rank, DType dtype,
                                        absl::Span<const ProcessGroup> replicas) {
  std::vector<ReplicaSlice> slices = WholeSlices(layout, shard_rank);
  for (ReplicaSlice& slice : slices) {
    const ProcessGroup& group = replicas[static_cast<size_t>(slice.bucket)];
    slice.counts = AllReduceCounts(slice.range.count, group.size(), dtype);
    slice.own = slice.PartOf(group.group_rank);
  }
  return slices;
}

std::vector<std::vector<FlatRange>> ReplicaImageRanges(const FlatLayout& layout, int shard_rank,
                                                       const ReplicaSlice& slice) {
  std::vector<std::vector<FlatRange>> parts(slice.counts.size());
  for (const ShardPiece& piece : layout.Pieces(shard_rank)) {
    for (size_t replica = 0; replica < parts.size(); ++replica) {
      for (const ShardPiece& cut : CutPiece(piece, slice.PartOf(static_cast<int>(replica)))) {
        parts[replica].push_back({layout.image_offset(cut.parameter) + cut.start, cut.elements()});
      }
    }
  }
  return parts;
}

int64_t UpdatedElements(absl::Span<const ReplicaSlice> slices) {
  int64_t elements = 0;
  for (const ReplicaSlice& slice : slices) elements += slice.own.count;
  return elements;
}

std::vector<ShardPiece> CutPiece(const ShardPiece& piece, const FlatRange& range) {
  std::vector<ShardPiece> cut;
  int64_t at = std::max<int64_t>(0, range.begin - piece.shard_offset);
  const int64_t end = std::min(piece.elements(), range.end() - piece.shard_offset);
  while (at < end) {
    const int64_t run = at / piece.run_length;
    const int64_t within = at % piece.run_length;
    const int64_t whole_runs = within == 0 ? (end - at) / piece.run_length : 0;
    const int64_t runs = std::max<int64_t>(1, whole_runs);
    const int64_t length = whole_runs > 0 ? piece.run_length : std::min(piece.run_length - within, end - at);
    cut.push_back({piece.parameter, piece.shard_offset + at, piece.start + run * piece.run_stride + within,
                   runs, length, runs > 1 ? piece.run_stride : length});
    at += runs * length;
  }
  return cut;
}

}  // namespace weft
