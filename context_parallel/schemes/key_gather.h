// Keys or values of all ranks of a group, gathered: blocks end to end in rank order, each [batch, its rank's
// tokens, heads, dim]. And their gradients, summed back to the ranks that the blocks come from.
//
// Collective: all ranks of the lane's group, in the same order.
#pragma once

#include <vector>

#include "context_parallel/schemes/sequence_attention.h"

namespace weft {

// Where the blocks of one gathered tensor lie.
class GatheredBlocks {
 public:
  GatheredBlocks(const SequenceParts& sequence, int64_t batch, int64_t heads, int64_t dim);
  // Like `own`, one rank's block.
  GatheredBlocks(const SequenceParts& sequence, const Tensor& own)
      : GatheredBlocks(sequence, own.dim(0), own.dim(2), own.dim(3)) {}

  const std::vector<int64_t>& counts() const { return counts_; }  // Elements, by rank.
  int64_t elements() const { return offsets_.back(); }
  Tensor Block(const Tensor& gathered, int rank) const;

 private:
  std::vector<Shape> shapes_;  // By rank.
  std::vector<int64_t> counts_;
  std::vector<int64_t> offsets_;  // By rank, then elements().
};

// Of keys and of values.
struct KeyValueBlocks {
  GatheredBlocks keys, values;

  KeyValueBlocks(const SequenceParts& sequence, const Tensor& own_k, const Tensor& own_v)
      : keys(sequence, own_k), values(sequence, own_v) {}
  // As the kernel takes them, of the ranks asked for.
  std::vector<KeyBlock> Of(const SequenceParts& sequence, const Tensor& k, const Tensor& v,
                           const std::vector<int>& ranks) const;
  std::vector<KeyGradients> GradientsOf(const Tensor& dk, const Tensor& dv,
                                        const std::vector<int>& ranks) const;
};

// Gathers every rank's `own`; see SequenceAttention::Launch.
absl::StatusOr<PendingTensor> GatherBlocks(const LevelLane& lane, const SequenceCall& call,
                                           AttentionRole role, const Tensor& own, const Work* after);
// Room for the f32 gradients of all blocks.
absl::StatusOr<Tensor> NewGradientBlocks(const LevelLane& lane, const GatheredBlocks& blocks);
// dk and dv are the sums of what all ranks have for this rank's block.
absl::StatusOr<SequenceAttention::Gradients> ReduceKeyGradients(const LevelLane& lane,
                                                                const SequenceCall& call,
                                                                const KeyValueBlocks& blocks,
                                                                PendingTensor dq, Tensor dk, Tensor dv);

// 0 to `ranks` - 1, without `except`.
std::vector<int> RanksBut(int ranks, int except);
std::vector<int> AllRanks(int ranks);

}  // namespace weft
