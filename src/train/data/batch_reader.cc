#include "src/train/data/batch_reader.h"

#include <algorithm>
#include <vector>

#include "weft/core/status.h"

namespace weft {

absl::StatusOr<Microbatch> ReadMicrobatch(const Corpus& corpus, const BatchOrder& order,
                                          SequenceRange sequences, int64_t seq_len, int64_t vocab_size) {
  Microbatch batch{Tensor::Empty(DType::kI32, {sequences.count, seq_len}),
                   Tensor::Empty(DType::kI32, {sequences.count, seq_len})};
  std::vector<int32_t> window(static_cast<size_t>(seq_len + 1));
  for (int64_t i = 0; i < sequences.count; ++i) {
    const int64_t first_token = order.WindowOf(sequences.first + i) * seq_len;
    WEFT_RETURN_IF_ERROR(corpus.Read(first_token, vocab_size, absl::MakeSpan(window)));
    std::copy_n(window.begin(), seq_len, batch.inputs.As<int32_t>() + i * seq_len);
    std::copy_n(window.begin() + 1, seq_len, batch.targets.As<int32_t>() + i * seq_len);
  }
  return batch;
}

}  // namespace weft
