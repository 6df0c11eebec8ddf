#include "src/comm/links/run_trials.h"

#include <utility>

namespace weft {
namespace {

constexpr int64_t kSkippedSlices = 24;
constexpr int64_t kPauseNs = 1'000'000;
constexpr double kGain = 1.25;
constexpr int kFasterPairs = 3;

}  // namespace

void RunTrials::EndPoll(int64_t now_ns, bool any_in_flight, bool needs_trials) {
  if (slices_of_poll_ == 0) return;
  if (!needs_trials) return BeginSlices(kFirstSlices);
  const int64_t bytes = std::exchange(bytes_of_poll_, 0);
  const int64_t slices = std::exchange(slices_of_poll_, 0);
  const int64_t last_ns = std::exchange(last_ns_, any_in_flight ? now_ns : 0);
  const bool counts = block_ > 0 && slices_left_ <= kBlockSlices - kSkippedSlices;
  if (counts && last_ns != 0 && now_ns - last_ns < kPauseNs) {
    Rate& rate = is_other_way() ? other_ : preferred_;
    rate.bytes += bytes;
    rate.ns += now_ns - last_ns;
  }
  slices_left_ -= slices;
  if (slices_left_ > 0) return;
  if (is_other_way()) EndPair();
  slices_left_ = kBlockSlices;
  if (++block_ <= kBlocks) return;
  if (faster_pairs_ >= kFasterPairs) prefers_runs_ = !prefers_runs_;
  BeginSlices(kSlices);
}

void RunTrials::BeginSlices(int64_t slices) {
  block_ = 0;
  slices_left_ = slices;
  faster_pairs_ = 0;
  bytes_of_poll_ = slices_of_poll_ = 0;
  last_ns_ = 0;
  preferred_ = other_ = {};
}

void RunTrials::EndPair() {
  const bool is_measured = preferred_.ns > 0 && other_.ns > 0;
  if (is_measured && other_.bytes_per_ns() > kGain * preferred_.bytes_per_ns()) ++faster_pairs_;
  preferred_ = other_ = {};
}

}  // namespace weft
