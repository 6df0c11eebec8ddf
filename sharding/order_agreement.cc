#include "sharding/order_agreement.h"

#include <array>
#include <cstring>
#include <vector>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

const std::string kLabel = "order of groups";

int64_t HashOf(absl::Span<const PassEvent> order) {
  std::vector<int> words;
  for (const PassEvent event : order) words.push_back(2 * event.group + static_cast<int>(event.kind));
  return static_cast<int64_t>(Hash64(words.data(), words.size() * sizeof(int)));
}

}  // namespace

absl::StatusOr<OrderAgreement> OrderAgreement::Make(CommContext& context, const ProcessGroup& everyone) {
  WEFT_ASSIGN_OR_RETURN(const LaneId lane, context.engine().AddLane(everyone, LanePurpose::kControl));
  return OrderAgreement(context, lane);
}

absl::StatusOr<bool> OrderAgreement::Agree(absl::Span<const PassEvent> recorded) {
  WEFT_RETURN_IF_ERROR(context_.status());
  // A rank that still gathers waits for others there, and would never come here.
  Work fence = context_.FenceAllGathers(kLabel);
  // The largest of a number and of its complement: they belong together if all numbers are the same.
  std::array<int64_t, 2> extremes = {HashOf(recorded), ~HashOf(recorded)};
  WEFT_ASSIGN_OR_RETURN(const Buffer buffer, context_.AcquireShard(sizeof(extremes)));
  std::memcpy(buffer.data(), extremes.data(), sizeof(extremes));
  Work work = context_.engine().AllReduce(lane_, buffer.data(), buffer.data(), DType::kI64, extremes.size(),
                                          ReduceOp::kMax, {Priority::kCritical, Hash64(kLabel), kLabel});
  if (const absl::Status done = work.WaitReleased(); !done.ok()) return context_.Fail(done);
  if (const absl::Status done = fence.WaitReleased(); !done.ok()) return context_.Fail(done);
  std::memcpy(extremes.data(), buffer.data(), sizeof(extremes));
  return extremes[0] == ~extremes[1];
}

}  // namespace weft
