// Ulysses' exchange: from some tokens of all heads to all tokens of some heads, and back, in one strided copy
// on the way.
//
// Collective: all ranks of the lane's group, in the same order.
// Thread safety: none. Lifetime: engine and pool must outlive it and what it returns.
#pragma once

#include <vector>

#include "context_parallel/layouts/head_split.h"
#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/pending_tensor.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

class HeadExchange {
 public:
  // What is cut how, by group rank.
  struct Cut {
    std::vector<int64_t> tokens;
    std::vector<HeadRange> heads;
  };

  HeadExchange(CommEngine& engine, BufferPool& pool, LaneId lane)
      : engine_(&engine), pool_(&pool), lane_(lane) {}

  // [batch, own tokens, heads, dim] to [batch, tokens, own heads, dim], tokens in rank order.
  absl::StatusOr<PendingTensor> ToHeads(const Tensor& local, const Cut& cut, OpOptions options) const;
  // The way back of what `gathered` brings, which is [batch, tokens, own heads, dim]. `heads`: of the result.
  // Of heads that several ranks have the sum is taken, in rank order; those must be f32.
  absl::StatusOr<PendingTensor> ToTokens(PendingTensor gathered, int64_t heads, const Cut& cut,
                                         OpOptions options) const;

 private:
  int size() const { return engine_->group(lane_).size(); }
  size_t me() const { return static_cast<size_t>(engine_->group(lane_).group_rank); }
  // Of all tokens, those of each rank.
  std::vector<TensorView> TokenViews(const TensorView& gathered, const Cut& cut) const;

  CommEngine* engine_;
  BufferPool* pool_;
  LaneId lane_;
};

}  // namespace weft
