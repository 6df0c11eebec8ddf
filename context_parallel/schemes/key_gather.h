// All-gather of keys and values over a group, and reduce-scatter of their gradients.
//
// A gathered tensor holds one block per rank, end to end in rank order. Each block is
// [batch, tokens of the rank, heads, dim].
//
// Collective: all ranks of the lane's group, in the same order.
#pragma once

#include <vector>

#include "context_parallel/schemes/sequence_attention.h"

namespace weft {

// Offsets and shapes of the blocks in a gathered tensor.
class GatheredBlocks {
 public:
  GatheredBlocks(const SequenceParts& sequence, int64_t batch, int64_t heads, int64_t dim);
  // `own`: the block of any rank.
  GatheredBlocks(const SequenceParts& sequence, const Tensor& own)
      : GatheredBlocks(sequence, own.dim(0), own.dim(2), own.dim(3)) {}

  const std::vector<int64_t>& counts() const { return counts_; }  // Elements of each block.
  int64_t elements() const { return offsets_.back(); }
  Tensor Block(const Tensor& gathered, int rank) const;

 private:
  std::vector<Shape> shapes_;  // [rank]
  std::vector<int64_t> counts_;
  std::vector<int64_t> offsets_;  // [rank], then elements().
};

// Blocks of the gathered keys and of the gathered values.
struct KeyValueBlocks {
  GatheredBlocks keys, values;

  KeyValueBlocks(const SequenceParts& sequence, const Tensor& own_k, const Tensor& own_v)
      : keys(sequence, own_k), values(sequence, own_v) {}
  // Kernel arguments for the blocks of `ranks`.
  std::vector<KeyBlock> Of(const SequenceParts& sequence, const Tensor& k, const Tensor& v,
                           const std::vector<int>& ranks) const;
  std::vector<KeyGradients> GradientsOf(const Tensor& dk, const Tensor& dv,
                                        const std::vector<int>& ranks) const;
};

// Gathers `own` of every rank; see SequenceAttention::Launch.
absl::StatusOr<PendingTensor> GatherBlocks(const LevelLane& lane, const SequenceCall& call,
                                           AttentionRole role, const Tensor& own, const Work* after);
// Uninitialized f32 gradients of all blocks.
absl::StatusOr<Tensor> NewGradientBlocks(const LevelLane& lane, const GatheredBlocks& blocks);
// Reduce-scatters `dk` and `dv`, which hold this rank's gradients of all blocks. Each rank gets the sums of
// its own block.
absl::StatusOr<SequenceAttention::Gradients> ReduceKeyGradients(const LevelLane& lane,
                                                                const SequenceCall& call,
                                                                const KeyValueBlocks& blocks,
                                                                PendingTensor dq, Tensor dk, Tensor dv);

// Ranks 0 to `ranks` - 1, without `except`.
std::vector<int> RanksExcept(int ranks, int except);
std::vector<int> AllRanks(int ranks);

}  // namespace weft
