// Ring attention with rotation by all-gather: one all-gather overlaps the computation of the own block.
// Unlike GatherAttention, it saves the own block only and gathers again in backward.
#include <utility>

#include "context_parallel/layouts/lse_merge.h"
#include "context_parallel/schemes/key_gather.h"
#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

class GatheredRingAttention final : public SequenceAttention {
 public:
  explicit GatheredRingAttention(const LevelLane& lane) : lane_(lane) {}

  absl::StatusOr<PendingTensor> Launch(const SequenceCall& call, AttentionRole role, const Tensor& own,
                                       const Work* after) override {
    if (role == AttentionRole::kQuery) return PendingTensor();
    return GatherBlocks(lane_, call, role, own, after);
  }

  absl::StatusOr<Result> Forward(const SequenceCall& call, Input q, Input k, Input v) override {
    const SequenceParts& sequence = *call.sequence;
    const auto attend = [&](absl::Span<const KeyBlock> keys, const Tensor& out, const Tensor& lse) {
      call.kernels->forward(call.problem, q.own.view(), sequence.runs(), keys, out.view(), lse.view());
    };
    WEFT_ASSIGN_OR_RETURN(Tensor sum, NewOutput(*lane_.pool, q.own, v.own, DType::kF32));
    WEFT_ASSIGN_OR_RETURN(Tensor lse, NewLse(*lane_.pool, q.own));
    attend({{k.own.view(), v.own.view(), &sequence.runs()}}, sum, lse);

    const KeyValueBlocks blocks(sequence, k.own, v.own);
    WEFT_ASSIGN_OR_RETURN(const Tensor keys, k.pending.Wait());
    WEFT_ASSIGN_OR_RETURN(const Tensor values, v.pending.Wait());
    const Tensor remote_out = Tensor::Empty(DType::kF32, sum.shape());
    WEFT_ASSIGN_OR_RETURN(const Tensor remote_lse, NewLse(*lane_.pool, q.own));
    attend(blocks.Of(sequence, keys, values, RanksExcept(lane_.size(), lane_.rank())), remote_out,
           remote_lse);
    LseMerge(sum.view(), lse.view(), remote_out.view(), remote_lse.view());

    return MakeResult(*lane_.pool, call, q.own, k.own, v.own, sum, lse);
  }

  absl::StatusOr<Gradients> Backward(const SequenceCall& call, const Tensors& saved,
                                     const Tensor& dout) override {
    const Tensor& q = saved[kSavedQ];
    const Tensor& k = saved[kSavedK];
    const Tensor& v = saved[kSavedV];
    const Tensor& lse = saved[kSavedLse];
    WEFT_ASSIGN_OR_RETURN(PendingTensor keys, GatherBlocks(lane_, call, AttentionRole::kKey, k, nullptr));
    WEFT_ASSIGN_OR_RETURN(PendingTensor values, GatherBlocks(lane_, call, AttentionRole::kValue, v, nullptr));
    const SequenceParts& sequence = *call.sequence;
    const KeyValueBlocks blocks(sequence, k, v);
    WEFT_ASSIGN_OR_RETURN(Tensor dq, PoolTensor(*lane_.pool, DType::kF32, q.shape()));
    WEFT_ASSIGN_OR_RETURN(Tensor dk, NewGradientBlocks(lane_, blocks.keys));
    WEFT_ASSIGN_OR_RETURN(Tensor dv, NewGradientBlocks(lane_, blocks.values));
    const Tensor delta = ComputeDelta(saved[kSavedOut], dout);
    const auto backward = [&](absl::Span<const KeyBlock> own, float dq_beta, const std::vector<int>& ranks) {
      call.kernels->backward(
          call.problem, q.view(), sequence.runs(), own,
          {.lse = lse.view(), .delta = delta.view(), .dout = dout.view()},
          {.dq = dq.view(), .dq_beta = dq_beta, .keys = blocks.GradientsOf(dk, dv, ranks)});
    };
    backward({{k.view(), v.view(), &sequence.runs()}}, 0.0F, {lane_.rank()});
    WEFT_RETURN_IF_ERROR(keys.Wait().status());
    WEFT_RETURN_IF_ERROR(values.Wait().status());
    const std::vector<int> remote = RanksExcept(lane_.size(), lane_.rank());
    backward(blocks.Of(sequence, keys.result(), values.result(), remote), 1.0F, remote);

    WEFT_ASSIGN_OR_RETURN(dq, ConvertTo(*lane_.pool, dq, q.dtype()));
    return ReduceKeyGradients(lane_, call, blocks, PendingTensor(std::move(dq)), std::move(dk),
                              std::move(dv));
  }

 private:
  LevelLane lane_;
};

}  // namespace

std::unique_ptr<SequenceAttention> MakeGatheredRingAttention(const LevelLane& lane) {
  return std::make_unique<GatheredRingAttention>(lane);
}

}  // namespace weft
