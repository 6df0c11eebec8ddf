// Attention on one rank that has the whole sequence.
#include <utility>

#include "context_parallel/schemes/sequence_attention.h"
#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

class LocalAttention final : public SequenceAttention {
 public:
  explicit LocalAttention(BufferPool& pool) : pool_(&pool) {}

  absl::StatusOr<PendingTensor> Launch(const SequenceCall&, AttentionRole, const Tensor&,
                                       const Work*) override {
    return PendingTensor();
  }

  absl::StatusOr<Result> Forward(const SequenceCall& call, Input q, Input k, Input v) override {
    WEFT_ASSIGN_OR_RETURN(Tensor out, NewOutput(*pool_, q.own, v.own, q.own.dtype()));
    WEFT_ASSIGN_OR_RETURN(Tensor lse, NewLse(*pool_, q.own));
    const TokenRuns& runs = call.sequence->runs();
    call.kernels->forward(call.problem, q.own.view(), runs, {{k.own.view(), v.own.view(), &runs}}, out.view(),
                          lse.view());
    return MakeResult(*pool_, call, q.own, k.own, v.own, out, lse);
  }

  absl::StatusOr<Gradients> Backward(const SequenceCall& call, const Tensors& saved,
                                     const Tensor& dout) override {
    const Tensor& q = saved[kSavedQ];
    const Tensor& k = saved[kSavedK];
    const Tensor& v = saved[kSavedV];
    const DType key_dtype = call.f32_key_gradients ? DType::kF32 : k.dtype();
    WEFT_ASSIGN_OR_RETURN(Tensor dq, PoolTensor(*pool_, q.dtype(), q.shape()));
    WEFT_ASSIGN_OR_RETURN(Tensor dk, PoolTensor(*pool_, key_dtype, k.shape()));
    WEFT_ASSIGN_OR_RETURN(Tensor dv, PoolTensor(*pool_, key_dtype, v.shape()));
    const TokenRuns& runs = call.sequence->runs();
    call.kernels->backward(call.problem, q.view(), runs, {{k.view(), v.view(), &runs}},
                           {.lse = saved[kSavedLse].view(),
                            .delta = ComputeDelta(saved[kSavedOut], dout).view(),
                            .dout = dout.view()},
                           {.dq = dq.view(), .keys = {{dk.view(), dv.view()}}});
    return Gradients{PendingTensor(std::move(dq)), PendingTensor(std::move(dk)),
                     PendingTensor(std::move(dv))};
  }

 private:
  BufferPool* pool_;
};

}  // namespace

std::unique_ptr<SequenceAttention> MakeLocalAttention(BufferPool& pool) {
  return std::make_unique<LocalAttention>(pool);
}

}  // namespace weft
