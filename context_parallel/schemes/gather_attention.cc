// Attention that gathers the keys and values of all ranks. Backward reduce-scatters their gradients.
#include <utility>

#include "context_parallel/schemes/key_gather.h"
#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

// Indices into Result::saved of the gathered tensors.
enum Saved : uint8_t { kKeys = kSavedCount, kValues };

class GatherAttention final : public SequenceAttention {
 public:
  explicit GatherAttention(const LevelLane& lane) : lane_(lane) {}

  absl::StatusOr<PendingTensor> Launch(const SequenceCall& call, AttentionRole role, const Tensor& own,
                                       const Work* after) override {
    if (role == AttentionRole::kQuery) return PendingTensor();
    return GatherBlocks(lane_, call, role, own, after);
  }

  absl::StatusOr<Result> Forward(const SequenceCall& call, Input q, Input k, Input v) override {
    WEFT_ASSIGN_OR_RETURN(const Tensor out, NewOutput(*lane_.pool, q.own, v.own, q.own.dtype()));
    WEFT_ASSIGN_OR_RETURN(const Tensor lse, NewLse(*lane_.pool, q.own));
    const KeyValueBlocks blocks(*call.sequence, k.own, v.own);
    WEFT_ASSIGN_OR_RETURN(const Tensor keys, k.pending.Wait());
    WEFT_ASSIGN_OR_RETURN(const Tensor values, v.pending.Wait());
    call.kernels->forward(call.problem, q.own.view(), call.sequence->runs(),
                          blocks.Of(*call.sequence, keys, values, AllRanks(lane_.size())), out.view(),
                          lse.view());
    const int rank = lane_.rank();
    WEFT_ASSIGN_OR_RETURN(Result result, MakeResult(*lane_.pool, call, q.own, blocks.keys.Block(keys, rank),
                                                    blocks.values.Block(values, rank), out, lse));
    if (call.saves) result.saved.insert(result.saved.end(), {keys, values});
    return result;
  }

  absl::StatusOr<Gradients> Backward(const SequenceCall& call, const Tensors& saved,
                                     const Tensor& dout) override {
    const Tensor& q = saved[kSavedQ];
    const KeyValueBlocks blocks(*call.sequence, saved[kSavedK], saved[kSavedV]);
    const std::vector<int> ranks = AllRanks(lane_.size());
    WEFT_ASSIGN_OR_RETURN(Tensor dq, PoolTensor(*lane_.pool, q.dtype(), q.shape()));
    WEFT_ASSIGN_OR_RETURN(Tensor dk, NewGradientBlocks(lane_, blocks.keys));
    WEFT_ASSIGN_OR_RETURN(Tensor dv, NewGradientBlocks(lane_, blocks.values));
    call.kernels->backward(call.problem, q.view(), call.sequence->runs(),
                           blocks.Of(*call.sequence, saved[kKeys], saved[kValues], ranks),
                           {.lse = saved[kSavedLse].view(),
                            .delta = ComputeDelta(saved[kSavedOut], dout).view(),
                            .dout = dout.view()},
                           {.dq = dq.view(), .keys = blocks.GradientsOf(dk, dv, ranks)});
    return ReduceKeyGradients(lane_, call, blocks, PendingTensor(std::move(dq)), std::move(dk),
                              std::move(dv));
  }

 private:
  LevelLane lane_;
};

}  // namespace

std::unique_ptr<SequenceAttention> MakeGatherAttention(const LevelLane& lane) {
  return std::make_unique<GatherAttention>(lane);
}

}  // namespace weft
