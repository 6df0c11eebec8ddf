#include "src/train/data/batch_splitter.h"

#include <utility>

#include "weft/context_parallel/sequence_parts.h"
#include "weft/core/status.h"

namespace weft {
namespace {

absl::StatusOr<RankBatch> ExtractRankBatch(const Tensor& inputs, const Tensor& targets,
                                           const SequenceLayout& layout, int rank) {
  RankBatch part;
  WEFT_ASSIGN_OR_RETURN(part.inputs, ExtractPart(inputs.view(), -1, layout, rank));
  WEFT_ASSIGN_OR_RETURN(part.targets, ExtractPart(targets.view(), -1, layout, rank));
  part.sequence = layout.Parts(rank);
  return part;
}

}  // namespace

std::vector<int64_t> DocumentLengths(absl::Span<const int32_t> tokens, int64_t window, int64_t separator) {
  std::vector<int64_t> lengths;
  int64_t length = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(tokens.size()); ++i) {
    ++length;
    if (tokens[static_cast<size_t>(i)] != separator && (i + 1) % window != 0) continue;
    lengths.push_back(length);
    length = 0;
  }
  return lengths;
}

absl::StatusOr<BatchSplitter> BatchSplitter::Create(int64_t seq_len, std::optional<int64_t> separator,
                                                    const SequenceSplit& split, int rank) {
  WEFT_ASSIGN_OR_RETURN(SequenceLayout layout, SequenceLayout::Create({seq_len}, split));
  return BatchSplitter(std::move(layout), separator, rank);
}

absl::StatusOr<RankBatch> BatchSplitter::Split(const Microbatch& batch) const {
  const int64_t sequences = batch.inputs.dim(0);
  if (!separator_.has_value() || sequences == 0) {
    if (one_document_.ranks() == 1) return RankBatch{batch.inputs, batch.targets, nullptr};
    return ExtractRankBatch(batch.inputs, batch.targets, one_document_, rank_);
  }
  const int64_t seq_len = one_document_.tokens();
  const Shape pack = {1, sequences * seq_len};
  const auto tokens = absl::MakeConstSpan(batch.inputs.As<int32_t>(), static_cast<size_t>(pack[1]));
  std::vector<int64_t> lengths = DocumentLengths(tokens, seq_len, *separator_);
  WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout, SequenceLayout::Create(lengths, one_document_.split()));
  WEFT_ASSIGN_OR_RETURN(RankBatch part, ExtractRankBatch(batch.inputs.Reshape(pack),
                                                         batch.targets.Reshape(pack), layout, rank_));
  part.document_lengths = std::move(lengths);
  return part;
}

}  // namespace weft
