// All-to-all of Ulysses: from some tokens of all heads to all tokens of some heads, and back.
//
// Peers of the node read and write strided parts in place, in one copy.
//
// Collective: all ranks of the lane's group, in the same order.
// Thread safety: none. Lifetime: engine and pool must outlive the object and what it returns.
#pragma once

#include <vector>

#include "context_parallel/layouts/head_split.h"
#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/pending_tensor.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

class HeadExchange {
 public:
  // Tokens and heads of each rank of the group.
  struct Partition {
    std::vector<int64_t> tokens;
    std::vector<HeadRange> heads;
  };

  HeadExchange(CommEngine& engine, BufferPool& pool, LaneId lane)
      : engine_(&engine), pool_(&pool), lane_(lane) {}

  // Scatters heads and gathers tokens: [batch, own tokens, heads, dim] to [batch, tokens, own heads, dim],
  // tokens in rank order.
  absl::StatusOr<PendingTensor> GatherTokens(const Tensor& local, const Partition& partition,
                                             OpOptions options) const;
  // Scatters tokens and gathers heads: `gathered` is [batch, tokens, own heads, dim], the result
  // [batch, own tokens, heads, dim]. A head that several ranks have becomes their sum, added in rank order.
  // REQUIRES: the dtype is f32 if any head is summed.
  absl::StatusOr<PendingTensor> GatherHeads(PendingTensor gathered, int64_t heads, const Partition& partition,
                                            OpOptions options) const;

 private:
  size_t rank() const { return static_cast<size_t>(engine_->group(lane_).group_rank); }
  // The tokens of each rank, as views of all tokens.
  static std::vector<TensorView> TokenViews(const TensorView& gathered, const Partition& partition);

  CommEngine* engine_;
  BufferPool* pool_;
  LaneId lane_;
};

}  // namespace weft
