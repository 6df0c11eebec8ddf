// Every rank gathers all keys and values; their gradients are reduce-scattered.
#include <utility>

#include "context_parallel/key_gather.h"
#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

class GatherAttention final : public SequenceAttention {
 public:
  explicit GatherAttention(const LevelLane& lane) : lane_(lane) {}

  absl::StatusOr<PendingTensor> Launch(const SequenceCall& call, AttentionRole role, const Tensor& own,
                                       const Work* after) override {
    if (role == AttentionRole::kQuery) return PendingTensor();
    return GatherBlocks(lane_, call, role, own, after);
  }

  absl::StatusOr<Result> Forward(const SequenceCall& call, Input q, Input k, Input v) override {
    WEFT_ASSIGN_OR_RETURN(Tensor out, NewOutput(*lane_.pool, q.own, v.own, q.own.dtype()));
    WEFT_ASSIGN_OR_RETURN(Tensor lse, NewLse(*lane_.pool, q.own));
    const KeyValueBlocks blocks(*call.sequence, k.own, v.own);
    WEFT_ASSIGN_OR_RETURN(const Tensor keys, k.pending.Wait());
    WEFT_ASSIGN_OR_RETURN(const Tensor values, v.pending.Wait());
    AttentionForward(call.problem, q.own.view(), call.sequence->runs(),
                     blocks.Of(*call.sequence, keys, values, AllRanks(lane_.size())), out.view(), lse.view());
    Result result{.out = out, .lse = lse};
    if (call.saves) {
      const int me = lane_.me();
      result.saved = {q.own,
                      blocks.keys.Block(keys, me),
                      blocks.values.Block(values, me),
                      std::move(out),
                      std::move(lse),
                      keys,
                      values};
    }
    return result;
  }

  absl::StatusOr<Gradients> Backward(const SequenceCall& call, const Tensors& saved,
                                     const Tensor& dout) override {
    const Tensor& q = saved[0];
    const KeyValueBlocks blocks(*call.sequence, saved[1], saved[2]);
    const std::vector<int> ranks = AllRanks(lane_.size());
    WEFT_ASSIGN_OR_RETURN(Tensor dq, PoolTensor(*lane_.pool, q.dtype(), q.shape()));
    WEFT_ASSIGN_OR_RETURN(Tensor dk, NewGradientBlocks(lane_, blocks.keys));
    WEFT_ASSIGN_OR_RETURN(Tensor dv, NewGradientBlocks(lane_, blocks.values));
    AttentionBackward(call.problem, q.view(), call.sequence->runs(),
                      blocks.Of(*call.sequence, saved[5], saved[6], ranks), saved[4].view(),
                      DeltaOf(saved[3], dout).view(), dout.view(), dq.view(), 0.0F,
                      blocks.GradientsOf(dk, dv, ranks), 0.0F);
    Gradients gradients{.dq = PendingTensor(std::move(dq))};
    WEFT_ASSIGN_OR_RETURN(gradients.dk,
                          ReduceBlocks(lane_, call, AttentionRole::kKey, blocks.keys, std::move(dk)));
    WEFT_ASSIGN_OR_RETURN(gradients.dv,
                          ReduceBlocks(lane_, call, AttentionRole::kValue, blocks.values, std::move(dv)));
    return gradients;
  }

 private:
  LevelLane lane_;
};

}  // namespace

std::unique_ptr<SequenceAttention> MakeGatherAttention(const LevelLane& lane) {
  return std::make_unique<GatherAttention>(lane);
}

}  // namespace weft
