// Gathering values of any amount through a bounded window of node memory.
#include <algorithm>
#include <numeric>

#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/sharding/comm_context.h"

namespace weft {
namespace {

constexpr int64_t kWindowElements = int64_t{1} << 20;  // Of all ranks together, at least one of each.

}  // namespace

absl::Status CommContext::GatherValues(const std::string& label, const float* own, float* all,
                                       absl::Span<const int64_t> counts, bool first_alone) {
  return GatherValues(label, {control_lane_, shard_group_.group_rank, first_alone}, own, all, counts);
}

absl::Status CommContext::GatherReplicaValues(const std::string& label, int bucket, const float* own,
                                              float* all, absl::Span<const int64_t> counts) {
  const LaneId lane = update_lanes_[static_cast<size_t>(bucket)].Next();
  return GatherValues(label, {lane, replicate_group(bucket).group_rank, /*first_alone=*/false}, own, all,
                      counts);
}

absl::Status CommContext::GatherValues(const std::string& label, const ValueSource& source, const float* own,
                                       float* all, absl::Span<const int64_t> counts) {
  WEFT_RETURN_IF_ERROR(status_);
  const auto ranks = static_cast<int64_t>(counts.size());
  const int64_t part = std::max<int64_t>(1, kWindowElements / ranks);
  const int64_t largest = *std::max_element(counts.begin(), counts.end());
  const bool receives = !source.first_alone || source.rank == 0;
  const int64_t held = counts[static_cast<size_t>(source.rank)];
  for (int64_t begin = 0; begin < largest; begin += part) {
    std::vector<int64_t> window_counts;
    for (const int64_t count : counts) window_counts.push_back(std::clamp<int64_t>(count - begin, 0, part));
    const int64_t total = std::accumulate(window_counts.begin(), window_counts.end(), int64_t{0});
    WEFT_ASSIGN_OR_RETURN(const Buffer window, AcquireShard(static_cast<size_t>(total) * sizeof(float)));
    const float* sent = begin < held ? own + begin : nullptr;
    WEFT_RETURN_IF_ERROR(GatherWindow(label, source, sent, window.data(), window_counts));
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

absl::Status CommContext::GatherWindow(const std::string& label, const ValueSource& source, const float* own,
                                       std::byte* window, absl::Span<const int64_t> counts) {
  // Without the number of submissions, which differs between ranks of several groups as what they hold does.
  const OpOptions options = {Priority::kCritical, Hash64(label), label};
  Work work;
  if (source.first_alone) {
    std::vector<int64_t> sends(counts.size(), 0);
    std::vector<int64_t> receives(counts.size(), 0);
    sends[0] = counts[static_cast<size_t>(source.rank)];
    if (source.rank == 0) receives.assign(counts.begin(), counts.end());
    work = engine_.AllToAll(source.lane, own, sends, window, receives, DType::kF32, options);
  } else {
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    work = engine_.AllGather(source.lane, own, window, DType::kF32, total, counts, options);
  }
  return Settle(work);
}

}  // namespace weft
