// Ring attention with rotation by shift. A rank sends a block of keys and values to the next rank while it
// computes the block. In backward the f32 gradients of a block follow it one hop behind. The last rank that
// attends to the block returns them to the owner, which waits for them only when the gradients are used.
#include <utility>

#include "context_parallel/layouts/lse_merge.h"
#include "context_parallel/schemes/ring_pass.h"
#include "weft/core/add_run.h"
#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

void AddTo(const Tensor& sum, const Tensor& other) {
  AddRun(other.As<float>(), DType::kF32, sum.As<float>(), DType::kF32, sum.elements());
}

// `sum` plus `received`, which is valid when `pending` is ready.
PendingTensor AddReceived(const Tensor& sum, const Tensor& received, std::shared_ptr<PendingTensor> pending) {
  PendingTensor result(sum);
  result.FinishWith([received, pending = std::move(pending)](const Tensor& own) -> absl::StatusOr<Tensor> {
    WEFT_RETURN_IF_ERROR(pending->Wait().status());
    AddTo(own, received);
    return own;
  });
  return result;
}

// The queries in a range of `tensor`.
TensorView Window(const Tensor& tensor, int token_dim, const TokenRange& queries) {
  return tensor.view().Slice(token_dim, queries.begin, queries.count);
}

// Keys and values of the ring, one block after the other.
class RotatingBlocks {
 public:
  RotatingBlocks(const RingPass& pass, PendingTensor k, PendingTensor v)
      : pass_(&pass), k_(std::move(k)), v_(std::move(v)) {}

  // Waits for the block at `distance` and sends it to the next rank. The tensors stay valid until the next
  // call.
  absl::StatusOr<KeyBlock> At(int distance) {
    WEFT_ASSIGN_OR_RETURN(const Tensor k, k_.Wait());
    WEFT_ASSIGN_OR_RETURN(const Tensor v, v_.Wait());
    WEFT_ASSIGN_OR_RETURN(PendingTensor next_k, pass_->Hop(AttentionRole::kKey, distance + 1, k, nullptr));
    WEFT_ASSIGN_OR_RETURN(PendingTensor next_v, pass_->Hop(AttentionRole::kValue, distance + 1, v, nullptr));
    current_ = {std::move(k_), std::move(v_)};
    k_ = std::move(next_k);
    v_ = std::move(next_v);
    return KeyBlock{k.view(), v.view(), &pass_->RunsAt(distance)};
  }

 private:
  const RingPass* pass_;
  PendingTensor k_, v_;
  std::pair<PendingTensor, PendingTensor> current_;
};

// The backward pass of one call.
class RingBackward {
 public:
  RingBackward(const LevelLane& lane, const SequenceCall& call, std::shared_ptr<const RingPlan> plan,
               const Tensors& saved, const Tensor& dout)
      : pool_(lane.pool),
        call_(call),
        pass_(lane, call, std::move(plan)),
        q_(saved[kSavedQ]),
        k_(saved[kSavedK]),
        v_(saved[kSavedV]),
        lse_(saved[kSavedLse]),
        dout_(dout),
        delta_(ComputeDelta(saved[kSavedOut], dout)) {}

  absl::StatusOr<SequenceAttention::Gradients> Run() {
    WEFT_ASSIGN_OR_RETURN(PendingTensor k, pass_.Hop(AttentionRole::kKey, 1, k_, nullptr));
    WEFT_ASSIGN_OR_RETURN(PendingTensor v, pass_.Hop(AttentionRole::kValue, 1, v_, nullptr));
    RotatingBlocks keys(pass_, std::move(k), std::move(v));
    WEFT_ASSIGN_OR_RETURN(dq_, PoolTensor(*pool_, DType::kF32, q_.shape()));
    const TokenRuns& runs = call_.sequence->runs();
    WEFT_ASSIGN_OR_RETURN(const BlockGradients own,
                          Compute({k_.view(), v_.view(), &runs}, {0, q_.dim(1)}, 0.0F));
    for (int distance = 1; distance <= pass_.hops(); ++distance) {
      WEFT_ASSIGN_OR_RETURN(const KeyBlock block, keys.At(distance));
      WEFT_RETURN_IF_ERROR(BackwardThroughBlock(block, distance));
    }
    WEFT_ASSIGN_OR_RETURN(dq_, ConvertTo(*pool_, dq_, q_.dtype()));
    if (own_round_.pending == nullptr) {
      return SequenceAttention::Gradients{PendingTensor(dq_), PendingTensor(own.dk), PendingTensor(own.dv)};
    }
    const BlockGradients received = BlockGradients::Of(own_round_.own_block, k_.shape(), v_.shape());
    return SequenceAttention::Gradients{PendingTensor(dq_),
                                        AddReceived(own.dk, received.dk, own_round_.pending),
                                        AddReceived(own.dv, received.dv, own_round_.pending)};
  }

 private:
  // Computes the gradients of a block and adds its part of dq.
  absl::StatusOr<BlockGradients> Compute(const KeyBlock& block, const TokenRange& queries,
                                         float dq_beta) const {
    WEFT_ASSIGN_OR_RETURN(BlockGradients gradients,
                          BlockGradients::Make(*pool_, block.k.shape, block.v.shape));
    call_.kernels->backward(call_.problem, Window(q_, 1, queries),
                            SliceRuns(call_.sequence->runs(), queries.begin, queries.count), {block},
                            {.lse = Window(lse_, 2, queries),
                             .delta = Window(delta_, 2, queries),
                             .dout = Window(dout_, 1, queries)},
                            {.dq = Window(dq_, 1, queries),
                             .dq_beta = dq_beta,
                             .keys = {{gradients.dk.view(), gradients.dv.view()}}});
    return gradients;
  }

  absl::Status BackwardThroughBlock(const KeyBlock& block, int distance) {
    Tensor gradients;
    if (pass_.AttendsAt(distance)) {
      const TokenRange queries =
          AttendingQueries(call_.problem.mask, call_.sequence->runs(), pass_.RunsAt(distance));
      WEFT_ASSIGN_OR_RETURN(BlockGradients computed, Compute(block, queries, 1.0F));
      gradients = std::move(computed.all);
    }
    if (pass_.ReceivesGradientsAt(distance)) {
      WEFT_RETURN_IF_ERROR(incoming_.pending->Wait().status());
      if (gradients.defined()) {
        AddTo(gradients, incoming_.next_block);
      } else {
        gradients = incoming_.next_block;
      }
    }
    WEFT_ASSIGN_OR_RETURN(incoming_, pass_.ExchangeGradients(distance, gradients, k_.shape(), v_.shape()));
    if (pass_.ReceivesOwnGradientsAt(distance)) own_round_ = incoming_;
    return absl::OkStatus();
  }

  BufferPool* pool_;
  const SequenceCall& call_;
  RingPass pass_;
  const Tensor &q_, &k_, &v_, &lse_, &dout_;
  Tensor delta_;
  Tensor dq_;                // f32
  GradientRound incoming_;   // Receives the gradients of the next block.
  GradientRound own_round_;  // The only round, if any, that receives the gradients of the own block.
};

class ShiftedRingAttention final : public SequenceAttention {
 public:
  explicit ShiftedRingAttention(const LevelLane& lane) : lane_(lane) {}

  absl::StatusOr<PendingTensor> Launch(const SequenceCall& call, AttentionRole role, const Tensor& own,
                                       const Work* after) override {
    if (role == AttentionRole::kQuery) return PendingTensor();
    return RingPass(lane_, call, PlanFor(call)).Hop(role, 1, own, after);
  }

  absl::StatusOr<Result> Forward(const SequenceCall& call, Input q, Input k, Input v) override {
    const RingPass pass(lane_, call, PlanFor(call));
    const TokenRuns& runs = call.sequence->runs();
    WEFT_ASSIGN_OR_RETURN(Tensor sum, NewOutput(*lane_.pool, q.own, v.own, DType::kF32));
    WEFT_ASSIGN_OR_RETURN(Tensor lse, NewLse(*lane_.pool, q.own));
    call.kernels->forward(call.problem, q.own.view(), runs, {{k.own.view(), v.own.view(), &runs}}, sum.view(),
                          lse.view());
    const Tensor block_out = Tensor::Empty(DType::kF32, sum.shape());
    const Tensor block_lse = Tensor::Empty(DType::kF32, lse.shape());
    RotatingBlocks keys(pass, std::move(k.pending), std::move(v.pending));
    for (int distance = 1; distance <= pass.hops(); ++distance) {
      WEFT_ASSIGN_OR_RETURN(const KeyBlock block, keys.At(distance));
      if (!pass.AttendsAt(distance)) continue;
      const TokenRange queries = AttendingQueries(call.problem.mask, runs, pass.RunsAt(distance));
      const TensorView window_out = Window(block_out, 1, queries);
      const TensorView window_lse = Window(block_lse, 2, queries);
      call.kernels->forward(call.problem, Window(q.own, 1, queries),
                            SliceRuns(runs, queries.begin, queries.count), {block}, window_out, window_lse);
      LseMerge(Window(sum, 1, queries), Window(lse, 2, queries), window_out, window_lse);
    }
    return MakeResult(*lane_.pool, call, q.own, k.own, v.own, sum, lse);
  }

  absl::StatusOr<Gradients> Backward(const SequenceCall& call, const Tensors& saved,
                                     const Tensor& dout) override {
    return RingBackward(lane_, call, PlanFor(call), saved, dout).Run();
  }

 private:
  // Cached, since all layers of a model use the same sequence.
  std::shared_ptr<const RingPlan> PlanFor(const SequenceCall& call) {
    if (cached_sequence_ != call.sequence || cached_mask_ != call.problem.mask) {
      cached_plan_ = std::make_shared<RingPlan>(call.problem.mask, call.sequence->parts);
      cached_sequence_ = call.sequence;
      cached_mask_ = call.problem.mask;
    }
    return cached_plan_;
  }

  LevelLane lane_;
  std::shared_ptr<const RingPlan> cached_plan_;
  std::shared_ptr<const SequenceParts> cached_sequence_;
  AttentionMask cached_mask_;
};

}  // namespace

std::unique_ptr<SequenceAttention> MakeShiftedRingAttention(const LevelLane& lane) {
  return std::make_unique<ShiftedRingAttention>(lane);
}

}  // namespace weft
