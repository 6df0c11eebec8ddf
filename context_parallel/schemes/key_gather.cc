#include "context_parallel/schemes/key_gather.h"

#include <utility>

#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

// Reduce-scatters the gradients of all blocks to the owners of the blocks.
absl::StatusOr<PendingTensor> ReduceBlocks(const LevelLane& lane, const SequenceCall& call,
                                           AttentionRole role, const GatheredBlocks& blocks,
                                           Tensor gradients) {
  WEFT_ASSIGN_OR_RETURN(Tensor sum,
                        PoolTensor(*lane.pool, DType::kF32, blocks.Block(gradients, lane.rank()).shape()));
  Work work = lane.engine->ReduceScatter(lane.lane, gradients.view().data, sum.view().data, DType::kF32,
                                         blocks.elements(), ReduceOp::kSum, blocks.counts(),
                                         call.Options(absl::StrCat("d", ToAbsl(Name(role)))));
  return PendingTensor(std::move(sum), std::move(work), {std::move(gradients)});
}

}  // namespace

GatheredBlocks::GatheredBlocks(const SequenceParts& sequence, int64_t batch, int64_t heads, int64_t dim)
    : offsets_({0}) {
  for (const TokenRuns& runs : sequence.parts) {
    shapes_.push_back({batch, TokenCount(runs), heads, dim});
    counts_.push_back(ElementCount(shapes_.back()));
    offsets_.push_back(offsets_.back() + counts_.back());
  }
}

Tensor GatheredBlocks::Block(const Tensor& gathered, int rank) const {
  const auto index = static_cast<size_t>(rank);
  return gathered.Window(gathered.view().Slice(0, offsets_[index], counts_[index])).Reshape(shapes_[index]);
}

std::vector<KeyBlock> KeyValueBlocks::Of(const SequenceParts& sequence, const Tensor& k, const Tensor& v,
                                         const std::vector<int>& ranks) const {
  std::vector<KeyBlock> blocks;
  blocks.reserve(ranks.size());
  for (const int rank : ranks) {
    blocks.push_back({keys.Block(k, rank).view(), values.Block(v, rank).view(),
                      &sequence.parts[static_cast<size_t>(rank)]});
  }
  return blocks;
}

std::vector<KeyGradients> KeyValueBlocks::GradientsOf(const Tensor& dk, const Tensor& dv,
                                                      const std::vector<int>& ranks) const {
  std::vector<KeyGradients> gradients;
  gradients.reserve(ranks.size());
  for (const int rank : ranks)
    gradients.push_back({keys.Block(dk, rank).view(), values.Block(dv, rank).view()});
  return gradients;
}

// The engine reads `own` in place if it is contiguous in node memory. Otherwise it is copied to its place in
// the result, so that the engine need not stage it.
absl::StatusOr<PendingTensor> GatherBlocks(const LevelLane& lane, const SequenceCall& call,
                                           AttentionRole role, const Tensor& own, const Work* after) {
  const GatheredBlocks blocks(*call.sequence, own);
  WEFT_ASSIGN_OR_RETURN(Tensor gathered, PoolTensor(*lane.pool, own.dtype(), {blocks.elements()}));
  const void* input = own.view().data;
  const bool in_node_memory = own.view().IsContiguous() && lane.engine->heap().AddressOf(input).has_value();
  if (!in_node_memory) {
    WEFT_CHECK(after == nullptr, "the result of an exchange lies in node memory");
    const Tensor place = blocks.Block(gathered, lane.rank());
    WEFT_RETURN_IF_ERROR(StridedCopy(own.view(), place.view()));
    input = place.view().data;
  }
  Work work = lane.engine->AllGather(lane.lane, input, gathered.view().data, own.dtype(), blocks.elements(),
                                     blocks.counts(), call.Options(Name(role)), after);
  return PendingTensor(std::move(gathered), std::move(work), {own});
}

absl::StatusOr<Tensor> NewGradientBlocks(const LevelLane& lane, const GatheredBlocks& blocks) {
  return PoolTensor(*lane.pool, DType::kF32, {blocks.elements()});
}

absl::StatusOr<SequenceAttention::Gradients> ReduceKeyGradients(const LevelLane& lane,
                                                                const SequenceCall& call,
                                                                const KeyValueBlocks& blocks,
                                                                PendingTensor dq, Tensor dk, Tensor dv) {
  SequenceAttention::Gradients gradients{.dq = std::move(dq)};
  WEFT_ASSIGN_OR_RETURN(gradients.dk,
                        ReduceBlocks(lane, call, AttentionRole::kKey, blocks.keys, std::move(dk)));
  WEFT_ASSIGN_OR_RETURN(gradients.dv,
                        ReduceBlocks(lane, call, AttentionRole::kValue, blocks.values, std::move(dv)));
  return gradients;
}

std::vector<int> RanksExcept(int ranks, int except) {
  std::vector<int> list;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != except) list.push_back(rank);
  }
  return list;
}

std::vector<int> AllRanks(int ranks) { return RanksExcept(ranks, -1); }

}  // namespace weft
