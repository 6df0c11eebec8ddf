#include "src/train/loop/merge_adapters.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <absl/types/span.h>

#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/nn/linear.h"
#include "weft/sharding/state_dict.h"

namespace weft {
namespace {

// Adds factor * B A to the elements of a shard, with B [rows, rank] and A [rank, columns].
void AddProduct(float factor, const std::vector<float>& b, const std::vector<float>& a,
                const ShardView& shard) {
  const ShardPiece& piece = shard.piece;
  const int64_t columns = shard.parameter->shape[1];
  const int64_t rank = static_cast<int64_t>(a.size()) / columns;
  for (int64_t run = 0; run < piece.runs; ++run) {
    const int64_t first = piece.start + run * piece.run_stride;
    const int64_t end = first + piece.run_length;
    float* const values = shard.data + run * piece.run_length;
    const int64_t first_row = first / columns;
    ParallelFor((end - 1) / columns - first_row + 1, 1, [&](int64_t begin_row, int64_t end_row) {
      for (int64_t row = first_row + begin_row; row < first_row + end_row; ++row) {
        const int64_t from = std::max(first, row * columns);
        const int64_t to = std::min(end, (row + 1) * columns);
        for (int64_t k = 0; k < rank; ++k) {
          const float weight = factor * b[static_cast<size_t>(row * rank + k)];
          const float* const a_row = a.data() + k * columns;
          for (int64_t i = from; i < to; ++i) values[i - first] += weight * a_row[i - row * columns];
        }
      }
    });
  }
}

}  // namespace

absl::Status MergeAdapters(ShardedModel& model, float scaling) {
  std::vector<ShardView> parts = model.Shards();
  const auto is_base = [](const ShardView& shard) { return !IsLoraParameter(*shard.parameter); };
  parts.erase(std::remove_if(parts.begin(), parts.end(), is_base), parts.end());
  std::map<std::string, std::vector<float>> adapters;
  WEFT_RETURN_IF_ERROR(GatherFullState(model, parts, StateTarget::kEveryRank,
                                       [&](const Parameter& parameter, absl::Span<const float> values) {
                                         adapters[parameter.name].assign(values.begin(), values.end());
                                         return absl::OkStatus();
                                       }));
  WEFT_RETURN_IF_ERROR(model.BeginWriting());
  WEFT_ASSIGN_OR_RETURN(const std::vector<ShardView> shards, model.CurrentShards());
  for (const ShardView& shard : shards) {
    const LoraNames names = LoraNamesOf(shard.parameter->name);
    const auto a = adapters.find(names.a);
    if (a != adapters.end()) AddProduct(scaling, adapters.at(names.b), a->second, shard);
  }
  return absl::OkStatus();
}

}  // namespace weft
