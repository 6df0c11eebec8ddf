// A ring by shift: the next block of keys and values travels while this one is computed; in backward the
// gradients of blocks, in f32, travel one hop behind them, and end at home, where nobody waits for them
// before they are asked for.
#include <utility>

#include "context_parallel/layouts/run_slices.h"
#include "context_parallel/schemes/ring_pass.h"
#include "weft/context_parallel/lse_merge.h"
#include "weft/core/add_run.h"
#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

constexpr int64_t kSumGrain = 16384;

void AddTo(const Tensor& sum, const Tensor& other) {
  ParallelFor(sum.elements(), kSumGrain, [&](int64_t begin, int64_t end) {
    AddRun(other.As<float>() + begin, DType::kF32, sum.As<float>() + begin, DType::kF32, end - begin);
  });
}

// `sum`, and what `arrival` brings to `brought`.
PendingTensor WithWhatComesHome(const Tensor& sum, const Tensor& brought,
                                std::shared_ptr<PendingTensor> arrival) {
  PendingTensor pending(sum);
  pending.FinishWith([brought, arrival = std::move(arrival)](const Tensor& own) -> absl::StatusOr<Tensor> {
    WEFT_RETURN_IF_ERROR(arrival->Wait().status());
    AddTo(own, brought);
    return own;
  });
  return pending;
}

// Of a tensor of queries, those that see any of a block.
TensorView Window(const Tensor& tensor, int token_dim, const TokenRange& queries) {
  return tensor.view().Slice(token_dim, queries.begin, queries.count);
}

// The blocks of keys and values as they come by.
class PassingKeys {
 public:
  PassingKeys(const RingPass& pass, PendingTensor k, PendingTensor v)
      : pass_(&pass), k_(std::move(k)), v_(std::move(v)) {}

  // Waits for the block at `distance`, and sends it on while the caller looks at it. Its tensors stay until
  // the next call.
  absl::StatusOr<KeyBlock> At(int distance) {
    WEFT_ASSIGN_OR_RETURN(const Tensor k, k_.Wait());
    WEFT_ASSIGN_OR_RETURN(const Tensor v, v_.Wait());
    WEFT_ASSIGN_OR_RETURN(PendingTensor next_k, pass_->Hop(AttentionRole::kKey, distance + 1, k, nullptr));
    WEFT_ASSIGN_OR_RETURN(PendingTensor next_v, pass_->Hop(AttentionRole::kValue, distance + 1, v, nullptr));
    here_ = {std::move(k_), std::move(v_)};
    k_ = std::move(next_k);
    v_ = std::move(next_v);
    return KeyBlock{k.view(), v.view(), &pass_->RunsAt(distance)};
  }

 private:
  const RingPass* pass_;
  PendingTensor k_, v_;
  std::pair<PendingTensor, PendingTensor> here_;
};

// Backward of one call.
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
        delta_(DeltaOf(saved[kSavedOut], dout)) {}

  absl::StatusOr<AttentionParallel::Gradients> Run() {
    WEFT_ASSIGN_OR_RETURN(PendingTensor k, pass_.Hop(AttentionRole::kKey, 1, k_, nullptr));
    WEFT_ASSIGN_OR_RETURN(PendingTensor v, pass_.Hop(AttentionRole::kValue, 1, v_, nullptr));
    PassingKeys keys(pass_, std::move(k), std::move(v));
    WEFT_ASSIGN_OR_RETURN(dq_, PoolTensor(*pool_, DType::kF32, q_.shape()));
    const TokenRuns& runs = call_.sequence->runs();
    WEFT_ASSIGN_OR_RETURN(const BlockGradients own,
                          Compute({k_.view(), v_.view(), &runs}, {0, q_.dim(1)}, 0.0F));
    for (int distance = 1; distance <= pass_.hops(); ++distance) {
      WEFT_ASSIGN_OR_RETURN(const KeyBlock block, keys.At(distance));
      WEFT_RETURN_IF_ERROR(GoBackThrough(block, distance));
    }
    WEFT_ASSIGN_OR_RETURN(dq_, InDType(*pool_, dq_, q_.dtype()));
    if (homecoming_.arrival == nullptr) {
      return AttentionParallel::Gradients{PendingTensor(dq_), PendingTensor(own.dk), PendingTensor(own.dv)};
    }
    const BlockGradients home = BlockGradients::Of(homecoming_.home, k_.shape(), v_.shape());
    return AttentionParallel::Gradients{PendingTensor(dq_),
                                        WithWhatComesHome(own.dk, home.dk, homecoming_.arrival),
                                        WithWhatComesHome(own.dv, home.dv, homecoming_.arrival)};
  }

 private:
  // Gradients of a block, and its part of dq.
  absl::StatusOr<BlockGradients> Compute(const KeyBlock& block, const TokenRange& queries,
                                         float dq_beta) const {
    WEFT_ASSIGN_OR_RETURN(BlockGradients gradients,
                          BlockGradients::Make(*pool_, block.k.shape, block.v.shape));
    AttentionBackward(call_.problem, Window(q_, 1, queries),
                      SliceRuns(call_.sequence->runs(), queries.begin, queries.count), {block},
                      Window(lse_, 2, queries), Window(delta_, 2, queries), Window(dout_, 1, queries),
                      Window(dq_, 1, queries), dq_beta, {{gradients.dk.view(), gradients.dv.view()}}, 0.0F);
    return gradients;
  }

  absl::Status GoBackThrough(const KeyBlock& block, int distance) {
    Tensor gradients;
    if (pass_.SeesAt(distance)) {
      const TokenRange queries =
          SeeingQueries(call_.problem.mask, call_.sequence->runs(), pass_.RunsAt(distance));
      WEFT_ASSIGN_OR_RETURN(BlockGradients computed, Compute(block, queries, 1.0F));
      gradients = std::move(computed.all);
    }
    if (pass_.GradientsComeTo(distance)) {
      WEFT_RETURN_IF_ERROR(behind_.arrival->Wait().status());
      if (gradients.defined()) {
        AddTo(gradients, behind_.next);
      } else {
        gradients = behind_.next;
      }
    }
    WEFT_ASSIGN_OR_RETURN(behind_, pass_.MoveGradients(distance, gradients, k_.shape(), v_.shape()));
    if (pass_.GradientsComeHomeFrom(distance)) homecoming_ = behind_;
    return absl::OkStatus();
  }

  BufferPool* pool_;
  const SequenceCall& call_;
  RingPass pass_;
  const Tensor &q_, &k_, &v_, &lse_, &dout_;
  Tensor delta_;
  Tensor dq_;                 // f32
  GradientRound behind_;      // Brings gradients of the next block.
  GradientRound homecoming_;  // The round, of which there is at most one, that brings this rank's own.
};

class ShiftedRingAttention final : public SequenceAttention {
 public:
  explicit ShiftedRingAttention(const LevelLane& lane) : lane_(lane) {}

  absl::StatusOr<PendingTensor> Launch(const SequenceCall& call, AttentionRole role, const Tensor& own,
                                       const Work* after) override {
    if (role == AttentionRole::kQuery) return PendingTensor();
    return RingPass(lane_, call, PlanOf(call)).Hop(role, 1, own, after);
  }

  absl::StatusOr<Result> Forward(const SequenceCall& call, Input q, Input k, Input v) override {
    const RingPass pass(lane_, call, PlanOf(call));
    const TokenRuns& runs = call.sequence->runs();
    WEFT_ASSIGN_OR_RETURN(Tensor sum, NewOutput(*lane_.pool, q.own, v.own, DType::kF32));
    WEFT_ASSIGN_OR_RETURN(Tensor lse, NewLse(*lane_.pool, q.own));
    AttentionForward(call.problem, q.own.view(), runs, {{k.own.view(), v.own.view(), &runs}}, sum.view(),
                     lse.view());
    const Tensor block_out = Tensor::Empty(DType::kF32, sum.shape());
    const Tensor block_lse = Tensor::Empty(DType::kF32, lse.shape());
    PassingKeys keys(pass, std::move(k.pending), std::move(v.pending));
    for (int distance = 1; distance <= pass.hops(); ++distance) {
      WEFT_ASSIGN_OR_RETURN(const KeyBlock block, keys.At(distance));
      if (!pass.SeesAt(distance)) continue;
      const TokenRange queries = SeeingQueries(call.problem.mask, runs, pass.RunsAt(distance));
      const TensorView some_out = Window(block_out, 1, queries);
      const TensorView some_lse = Window(block_lse, 2, queries);
      AttentionForward(call.problem, Window(q.own, 1, queries), SliceRuns(runs, queries.begin, queries.count),
                       {block}, some_out, some_lse);
      LseMerge(Window(sum, 1, queries), Window(lse, 2, queries), some_out, some_lse);
    }
    return FinishForward(*lane_.pool, call, q.own, k.own, v.own, sum, lse);
  }

  absl::StatusOr<Gradients> Backward(const SequenceCall& call, const Tensors& saved,
                                     const Tensor& dout) override {
    return RingBackward(lane_, call, PlanOf(call), saved, dout).Run();
  }

 private:
  // The layers of a model use one sequence: its plan is made once.
  std::shared_ptr<const RingPlan> PlanOf(const SequenceCall& call) {
    if (planned_sequence_ != call.sequence || planned_mask_ != call.problem.mask) {
      plan_ = std::make_shared<RingPlan>(call.problem.mask, call.sequence->parts);
      planned_sequence_ = call.sequence;
      planned_mask_ = call.problem.mask;
    }
    return plan_;
  }

  LevelLane lane_;
  std::shared_ptr<const RingPlan> plan_;
  std::shared_ptr<const SequenceParts> planned_sequence_;
  AttentionMask planned_mask_;
};

}  // namespace

std::unique_ptr<SequenceAttention> MakeShiftedRingAttention(const LevelLane& lane) {
  return std::make_unique<ShiftedRingAttention>(lane);
}

}  // namespace weft
