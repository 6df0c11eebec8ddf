#include "sharding/model/model_scalars.h"

#include <array>
#include <cstring>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {

absl::StatusOr<ModelScalars> ModelScalars::Make(CommContext& context, const ProcessGroup& everyone) {
  WEFT_ASSIGN_OR_RETURN(const LaneId lane, context.engine().AddLane(everyone, LanePurpose::kControl));
  return ModelScalars(context, lane);
}

absl::Status ModelScalars::AllReduce(const std::string& label, void* values, DType dtype, int64_t count,
                                     ReduceOp op) {
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  const absl::StatusOr<Buffer> buffer = context_.AcquireShard(bytes);
  if (!buffer.ok()) return context_.Fail(buffer.status());
  std::memcpy(buffer->data(), values, bytes);
  Work work = context_.engine().AllReduce(lane_, buffer->data(), buffer->data(), dtype, count, op,
                                          {Priority::kCritical, Hash64(label), label});
  if (const absl::Status done = work.WaitReleased(); !done.ok()) return context_.Fail(done);
  std::memcpy(values, buffer->data(), bytes);
  return absl::OkStatus();
}

absl::StatusOr<bool> ModelScalars::Same(const std::string& label, uint64_t number) {
  WEFT_RETURN_IF_ERROR(context_.status());
  // A rank that still gathers waits for others there, and would never come here.
  Work fence = context_.FenceAllGathers(label);
  // The largest of a number and of its complement: they belong together if all numbers are the same.
  std::array<int64_t, 2> extremes = {static_cast<int64_t>(number), ~static_cast<int64_t>(number)};
  WEFT_RETURN_IF_ERROR(AllReduce(label, extremes.data(), DType::kI64, extremes.size(), ReduceOp::kMax));
  if (const absl::Status done = fence.WaitReleased(); !done.ok()) return context_.Fail(done);
  return extremes[0] == ~extremes[1];
}

}  // namespace weft
