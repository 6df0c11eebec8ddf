#include "src/train/data/batch_reader.h"

#include <algorithm>
#include <vector>

#include "weft/core/status.h"
#include "weft/nn/lm_head_loss.h"

namespace weft {

namespace {

// Replaces the targets of a window that have no loss.
absl::Status IgnoreTargets(const Corpus& corpus, int64_t first_target, absl::Span<int32_t> targets) {
  std::vector<uint8_t> mask(targets.size());
  WEFT_RETURN_IF_ERROR(corpus.ReadLossMask(first_target, absl::MakeSpan(mask)));
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) targets[i] = kIgnoredTarget;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Microbatch> ReadMicrobatch(const Corpus& corpus, const BatchOrder& order,
                                          SequenceRange sequences, int64_t seq_len, int64_t vocab_size) {
  Microbatch batch{Tensor::Empty(DType::kI32, {sequences.count, seq_len}),
                   Tensor::Empty(DType::kI32, {sequences.count, seq_len})};
  std::vector<int32_t> window(static_cast<size_t>(seq_len + 1));
  for (int64_t i = 0; i < sequences.count; ++i) {
    const int64_t first_token = order.WindowOf(sequences.first + i) * seq_len;
    WEFT_RETURN_IF_ERROR(corpus.Read(first_token, vocab_size, absl::MakeSpan(window)));
    std::copy_n(window.begin(), seq_len, batch.inputs.As<int32_t>() + i * seq_len);
    const absl::Span<int32_t> targets(batch.targets.As<int32_t>() + i * seq_len,
                                      static_cast<size_t>(seq_len));
    std::copy_n(window.begin() + 1, seq_len, targets.begin());
    if (corpus.has_loss_mask()) WEFT_RETURN_IF_ERROR(IgnoreTargets(corpus, first_token + 1, targets));
  }
  return batch;
}

absl::StatusOr<int64_t> CountTargets(const Corpus& corpus, const BatchOrder& order, SequenceRange sequences,
                                     int64_t seq_len) {
  if (!corpus.has_loss_mask()) return sequences.count * seq_len;
  int64_t count = 0;
  std::vector<uint8_t> mask(static_cast<size_t>(seq_len));
  for (int64_t i = 0; i < sequences.count; ++i) {
    const int64_t first_token = order.WindowOf(sequences.first + i) * seq_len;
    WEFT_RETURN_IF_ERROR(corpus.ReadLossMask(first_token + 1, absl::MakeSpan(mask)));
    count += std::count(mask.begin(), mask.end(), uint8_t{1});
  }
  return count;
}

}  // namespace weft
