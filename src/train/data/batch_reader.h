// Reader of a microbatch's sequences from the data.
#pragma once

#include <cstdint>

#include <absl/status/statusor.h>

#include "weft/core/tensor.h"
#include "weft/train/batch_order.h"
#include "weft/train/corpus.h"

namespace weft {

struct Microbatch {
  Tensor inputs;   // [sequences, seq_len], i32.
  Tensor targets;  // The token after each input, or kIgnoredTarget if that has no loss; same shape and dtype.
};

// Reads `sequences`, counted over the whole run. Errors: those of Corpus::Read.
absl::StatusOr<Microbatch> ReadMicrobatch(const Corpus& corpus, const BatchOrder& order,
                                          SequenceRange sequences, int64_t seq_len, int64_t vocab_size);

// The number of targets of `sequences` that have a loss. Errors: those of Corpus::ReadLossMask.
absl::StatusOr<int64_t> CountTargets(const Corpus& corpus, const BatchOrder& order, SequenceRange sequences,
                                     int64_t seq_len);

}  // namespace weft
