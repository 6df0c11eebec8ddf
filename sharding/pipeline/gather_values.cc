#include "sharding/pipeline/gather_values.h"

#include <algorithm>
#include <numeric>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kWindowElements = int64_t{1} << 20;  // All ranks together; each has at least one.

// The ranks that values are gathered from.
struct ValueSource {
  LaneId lane;
  int rank;  // This rank's place among them.
  bool first_only;
};

// Gathers one window. `counts`: elements of each rank, which lie end to end in `window`.
absl::Status GatherWindow(CommContext& context, const std::string& label, const ValueSource& source,
                          const float* own, std::byte* window, absl::Span<const int64_t> counts) {
  // The identity leaves out the number of submissions: it differs between ranks whose groups have different
  // sizes.
  const OpOptions options = {Priority::kCritical, Hash64(label), label};
  CommEngine& engine = context.state().engine();
  Work work;
  if (source.first_only) {
    std::vector<int64_t> sends(counts.size(), 0);
    std::vector<int64_t> receives(counts.size(), 0);
    sends[0] = counts[static_cast<size_t>(source.rank)];
    if (source.rank == 0) receives.assign(counts.begin(), counts.end());
    work = engine.AllToAll(source.lane, own, sends, window, receives, DType::kF32, options);
  } else {
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    work = engine.AllGather(source.lane, own, window, DType::kF32, total, counts, options);
  }
  return context.state().AwaitRelease(work);
}

absl::Status GatherValues(CommContext& context, const std::string& label, const ValueSource& source,
                          const float* own, float* all, absl::Span<const int64_t> counts) {
  WEFT_RETURN_IF_ERROR(context.state().status());
  const auto ranks = static_cast<int64_t>(counts.size());
  const int64_t part = std::max<int64_t>(1, kWindowElements / ranks);
  const int64_t largest = *std::max_element(counts.begin(), counts.end());
  const bool receives = !source.first_only || source.rank == 0;
  const int64_t own_count = counts[static_cast<size_t>(source.rank)];
  for (int64_t begin = 0; begin < largest; begin += part) {
    std::vector<int64_t> window_counts;
    for (const int64_t count : counts) window_counts.push_back(std::clamp<int64_t>(count - begin, 0, part));
    const int64_t total = std::accumulate(window_counts.begin(), window_counts.end(), int64_t{0});
    WEFT_ASSIGN_OR_RETURN(const Buffer window,
                          context.memory().AcquireShard(static_cast<size_t>(total) * sizeof(float)));
    const float* sent = begin < own_count ? own + begin : nullptr;
    WEFT_RETURN_IF_ERROR(GatherWindow(context, label, source, sent, window.data(), window_counts));
    if (!receives) continue;
    const auto* from = reinterpret_cast<const float*>(window.data());
    float* rank_values = all;
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      if (window_counts[rank] > 0) std::copy_n(from, window_counts[rank], rank_values + begin);
      from += window_counts[rank];
      rank_values += counts[rank];
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status GatherShardValues(CommContext& context, const PipelineLanes& lanes, const std::string& label,
                               const float* own, float* all, absl::Span<const int64_t> counts,
                               bool first_only) {
  return GatherValues(context, label, {lanes.control_lane(), lanes.shard_group().group_rank, first_only}, own,
                      all, counts);
}

absl::Status GatherReplicaValues(CommContext& context, const std::string& label, int bucket, const float* own,
                                 float* all, absl::Span<const int64_t> counts) {
  PipelineLanes& lanes = context.lanes();
  const LaneId lane = lanes.NextUpdateLane(bucket);
  return GatherValues(context, label, {lane, lanes.replicate_group(bucket).group_rank, /*first_only=*/false},
                      own, all, counts);
}

}  // namespace weft
