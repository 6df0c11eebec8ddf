// Splitter of a microbatch into the parts of ranks: the tokens of this rank, and their positions for
// attention.
//
// Ranks that share sequences all read the whole sequences, and each keeps its part. Nothing is sent.
//
// Pure. Thread safety: values.
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
  Tensor inputs;   // [sequences, own tokens], i32; with documents [1, own tokens of all sequences].
  Tensor targets;  // Same shape and dtype.
  // Positions of the tokens, for the invocation. Null if each sequence is one document, whole on this rank.
  std::shared_ptr<const SequenceParts> sequence;
  // Lengths of the documents of all sequences, in order. Empty if each sequence is one document.
  std::vector<int64_t> document_lengths = {};
};

// Lengths of the documents in `tokens`, which are whole windows of `window` tokens each. A document ends
// after `separator`, and at the end of its window.
std::vector<int64_t> DocumentLengths(absl::Span<const int32_t> tokens, int64_t window, int64_t separator);

class BatchSplitter {
 public:
  // `separator` is the token that ends a document; if it is unset, each sequence is one document. `rank` is
  // this rank's index among the ranks that share its sequences.
  static absl::StatusOr<BatchSplitter> Create(int64_t seq_len, std::optional<int64_t> separator,
                                              const SequenceSplit& split, int rank);

  // This rank's part of whole sequences. With documents, all sequences together are one pack, and the layout
  // splits each document over the ranks.
  absl::StatusOr<RankBatch> Split(const Microbatch& batch) const;

 private:
  BatchSplitter(SequenceLayout one_document, std::optional<int64_t> separator, int rank)
      : one_document_(std::move(one_document)), separator_(separator), rank_(rank) {}

  SequenceLayout one_document_;  // The layout of a sequence that is one document.
  std::optional<int64_t> separator_;
  int rank_;
};

}  // namespace weft
