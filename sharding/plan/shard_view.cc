#include "weft/sharding/shard_view.h"

#include <cstddef>

#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/nn/initialize.h"

namespace weft {

absl::Status FillShards(absl::Span<const ShardView> shards, const ShardLoader& loader) {
  for (const ShardView& shard : shards) {
    const ShardPiece& piece = shard.piece;
    for (int64_t run = 0; run < piece.runs; ++run) {
      WEFT_RETURN_IF_ERROR(loader(*shard.parameter, piece.start + run * piece.run_stride, piece.run_length,
                                  shard.data + run * piece.run_length));
    }
  }
  return absl::OkStatus();
}

ShardLoader LoadInitialValues(uint64_t seed) {
  return [seed](const Parameter& parameter, int64_t start, int64_t count, float* out) {
    FillInitialValues(parameter, seed, start, count, out);
    return absl::OkStatus();
  };
}

ShardLoader LoadFromParameters() {
  return [](const Parameter& parameter, int64_t start, int64_t count, float* out) {
    const TensorView& data = parameter.data;
    if (data.data == nullptr || data.shape != parameter.shape || !data.IsContiguous() ||
        !IsFloating(data.dtype)) {
      return absl::FailedPreconditionError(
          absl::StrCat("parameter '", parameter.name, "' has no contiguous floating-point data of its shape ",
                       ToString(parameter.shape), " to load from: give it some, or use another loader"));
    }
    const auto* source = static_cast<const std::byte*>(data.data) + BytesOf(start, data.dtype);
    ConvertRun(source, data.dtype, out, DType::kF32, count);
    return absl::OkStatus();
  };
}

}  // namespace weft
