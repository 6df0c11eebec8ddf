// Which tokens of a microbatch's sequences this rank computes: all of them, or its part where ranks share
// sequences, with what attention must know about where they lie.
//
// Ranks that share sequences read the same ones whole, and each keeps its part: nothing is sent.
//
// Pure. Thread safety: a value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "src/train/data/batch_reader.h"
#include "weft/context_parallel/sequence_layout.h"
#include "weft/core/tensor.h"

namespace weft {

struct RankBatch {
  Tensor inputs;   // [sequences, own tokens]; of packs of documents [1, own tokens of all sequences].
  Tensor targets;  // Of the same shape.
  // For the invocation; null: every sequence is one document that this rank has whole.
  std::shared_ptr<const SequenceParts> sequence;
};

// Lengths of the documents of windows that lie end to end, in their order. A document ends after `separator`,
// and at the end of its window of `window` tokens.
std::vector<int64_t> DocumentLengths(absl::Span<const int32_t> tokens, int64_t window, int64_t separator);

class BatchSplitter {
 public:
  // `separator`: the token that ends a document; unset: each sequence is one document. `rank`: of those that
  // `split` is over.
  static absl::StatusOr<BatchSplitter> Create(int64_t seq_len, std::optional<int64_t> separator,
                                              const SequenceSplit& split, int rank);

  // This rank's part of whole sequences. With documents, the sequences together are one pack: their documents
  // are split over the ranks as the layout says, whatever sequence they come from.
  absl::StatusOr<RankBatch> Split(const Microbatch& batch) const;

 private:
  BatchSplitter(SequenceLayout one_document, std::optional<int64_t> separator, int rank)
      : one_document_(std::move(one_document)), separator_(separator), rank_(rank) {}

  SequenceLayout one_document_;  // Of a sequence.
  std::optional<int64_t> separator_;
  int rank_;
};

}  // namespace weft
