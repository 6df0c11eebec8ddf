#include "sharding/model/model_scalars.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include <absl/strings/str_cat.h>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr size_t kFlagsPerWord = 32;

}  // namespace

absl::StatusOr<ModelScalars> ModelScalars::Create(CommContext& context, const ProcessGroup& all_ranks) {
  WEFT_ASSIGN_OR_RETURN(const LaneId lane,
                        context.state().engine().SharedLane(all_ranks, LanePurpose::kControl));
  return ModelScalars(context, lane);
}

absl::Status ModelScalars::AllReduce(const std::string& label, void* values, DType dtype, int64_t count,
                                     ReduceOp op) {
  const int ranks = context_.state().engine().group(lane_).size();
  const bool has_replicas = ranks > context_.lanes().shard_group().size();
  const bool is_small = static_cast<size_t>(BytesOf(count, dtype)) <= PipelineLanes::kScalarBytes;
  return has_replicas || !is_small ? AllReduceOverModel(label, values, dtype, count, op)
                                   : context_.lanes().AllReduceScalars(label, values, dtype, count, op);
}

absl::Status ModelScalars::AllReduceOverModel(const std::string& label, void* values, DType dtype,
                                              int64_t count, ReduceOp op) {
  PipelineState& state = context_.state();
  const size_t bytes = static_cast<size_t>(BytesOf(count, dtype));
  const absl::StatusOr<Buffer> buffer = context_.memory().AcquireShard(bytes);
  if (!buffer.ok()) return state.Fail(buffer.status());
  std::memcpy(buffer->data(), values, bytes);
  Work work = state.engine().AllReduce(lane_, buffer->data(), buffer->data(), dtype, count, op,
                                       {Priority::kCritical, Hash64(label), label});
  WEFT_RETURN_IF_ERROR(state.AwaitRelease(work));
  std::memcpy(values, buffer->data(), bytes);
  return absl::OkStatus();
}

absl::Status ModelScalars::AnyOnAllRanks(const std::string& label, std::vector<bool>& flags) {
  if (flags.empty()) return absl::OkStatus();
  std::vector<uint32_t> words((flags.size() + kFlagsPerWord - 1) / kFlagsPerWord);
  for (size_t i = 0; i < flags.size(); ++i) {
    words[i / kFlagsPerWord] |= static_cast<uint32_t>(flags[i]) << (i % kFlagsPerWord);
  }
  // The label tells ranks with another number of flags apart.
  WEFT_RETURN_IF_ERROR(AllReduceOverModel(absl::StrCat(label, " (", flags.size(), " flags)"), words.data(),
                                          DType::kI32, std::ssize(words), ReduceOp::kBitOr));
  for (size_t i = 0; i < flags.size(); ++i) {
    flags[i] = ((words[i / kFlagsPerWord] >> (i % kFlagsPerWord)) & 1) != 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ModelScalars::IsSameOnAllRanks(const std::string& label, uint64_t number) {
  WEFT_RETURN_IF_ERROR(context_.state().status());
  // Without the barrier a rank that submitted one all-gather more would wait there and never reach the
  // all-reduce.
  std::vector<Work> barriers;
  barriers.reserve(static_cast<size_t>(context_.mesh_count()));
  for (int mesh = 0; mesh < context_.mesh_count(); ++mesh) {
    barriers.push_back(context_.lanes(mesh).BarrierAfterAllGathers(label));
  }
  // Maxima of the number and of its complement: they are complements of each other if all numbers are the
  // same.
  std::array<int64_t, 2> extremes = {static_cast<int64_t>(number), ~static_cast<int64_t>(number)};
  WEFT_RETURN_IF_ERROR(
      AllReduceOverModel(label, extremes.data(), DType::kI64, extremes.size(), ReduceOp::kMax));
  for (Work& barrier : barriers) WEFT_RETURN_IF_ERROR(context_.state().AwaitRelease(barrier));
  return extremes[0] == ~extremes[1];
}

}  // namespace weft
