// A gather whose ranks swap the tails of their queries with their mirrors, so that all have the same work
// under a causal mask. Keys and values move as in a gather; what is taken is computed first, and travels back
// while the rest is.
#include <utility>

#include "context_parallel/schemes/key_gather.h"
#include "context_parallel/schemes/query_exchange.h"
#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

// Places in Result::saved: what was taken, and what was gathered.
enum Saved : uint8_t { kTakenQ = kSavedPlaces, kTakenOut, kTakenLse, kKeys, kValues };

class BalancedGatherAttention final : public SequenceAttention {
 public:
  explicit BalancedGatherAttention(const LevelLane& lane) : lane_(lane) {}

  absl::StatusOr<PendingTensor> Launch(const SequenceCall& call, AttentionRole role, const Tensor& own,
                                       const Work* after) override {
    if (role != AttentionRole::kQuery) return GatherBlocks(lane_, call, role, own, after);
    return QueryExchange(lane_, *call.sequence).Take(own, call.Options("q"));
  }

  absl::StatusOr<Result> Forward(const SequenceCall& call, Input q, Input k, Input v) override {
    const QueryExchange exchange(lane_, *call.sequence);
    WEFT_ASSIGN_OR_RETURN(const Tensor taken_q, q.pending.Wait());
    WEFT_ASSIGN_OR_RETURN(Tensor out, NewOutput(*lane_.pool, q.own, v.own, q.own.dtype()));
    WEFT_ASSIGN_OR_RETURN(Tensor taken_out, NewOutput(*lane_.pool, taken_q, v.own, q.own.dtype()));
    WEFT_ASSIGN_OR_RETURN(Tensor lse, NewLse(*lane_.pool, q.own));
    WEFT_ASSIGN_OR_RETURN(Tensor taken_lse, NewLse(*lane_.pool, taken_q));
    const KeyValueBlocks blocks(*call.sequence, k.own, v.own);
    WEFT_ASSIGN_OR_RETURN(const Tensor keys, k.pending.Wait());
    WEFT_ASSIGN_OR_RETURN(const Tensor values, v.pending.Wait());
    const auto key_blocks = blocks.Of(*call.sequence, keys, values, AllRanks(lane_.size()));

    AttentionForward(call.problem, taken_q.view(), exchange.tails().taken_runs(), key_blocks,
                     taken_out.view(), taken_lse.view());
    PendingTensor out_back = exchange.Return(taken_out, out, 1, call.Options("out"));
    PendingTensor lse_back(lse);
    if (call.returns_lse) lse_back = exchange.Return(taken_lse, lse, 2, call.Options("lse"));
    AttentionForward(call.problem, exchange.KeptOf(q.own, 1).view(), exchange.tails().kept_runs(), key_blocks,
                     exchange.KeptOf(out, 1).view(), exchange.KeptOf(lse, 2).view());
    WEFT_RETURN_IF_ERROR(out_back.Wait().status());
    WEFT_RETURN_IF_ERROR(lse_back.Wait().status());
    const int me = lane_.me();
    WEFT_ASSIGN_OR_RETURN(Result result, FinishForward(*lane_.pool, call, q.own, blocks.keys.Block(keys, me),
                                                       blocks.values.Block(values, me), out, lse));
    if (call.saves) {
      result.saved.insert(result.saved.end(), {taken_q, taken_out, taken_lse, keys, values});
    }
    return result;
  }

  absl::StatusOr<Gradients> Backward(const SequenceCall& call, const Tensors& saved,
                                     const Tensor& dout) override {
    const QueryExchange exchange(lane_, *call.sequence);
    WEFT_ASSIGN_OR_RETURN(PendingTensor taken_dout, exchange.Take(dout, call.Options("dout")));
    const Tensor& q = saved[kSavedQ];
    const KeyValueBlocks blocks(*call.sequence, saved[kSavedK], saved[kSavedV]);
    const std::vector<int> ranks = AllRanks(lane_.size());
    const auto key_blocks = blocks.Of(*call.sequence, saved[kKeys], saved[kValues], ranks);
    WEFT_ASSIGN_OR_RETURN(Tensor dq, PoolTensor(*lane_.pool, q.dtype(), q.shape()));
    WEFT_ASSIGN_OR_RETURN(Tensor taken_dq, PoolTensor(*lane_.pool, q.dtype(), saved[kTakenQ].shape()));
    WEFT_ASSIGN_OR_RETURN(Tensor dk, NewGradientBlocks(lane_, blocks.keys));
    WEFT_ASSIGN_OR_RETURN(Tensor dv, NewGradientBlocks(lane_, blocks.values));
    const auto go_back = [&](const Tensor& queries, const TokenRuns& runs, const Tensor& out,
                             const Tensor& lse, const Tensor& gradient, const Tensor& target,
                             float key_beta) {
      AttentionBackward(call.problem, queries.view(), runs, key_blocks, lse.view(),
                        DeltaOf(out, gradient).view(), gradient.view(), target.view(), 0.0F,
                        blocks.GradientsOf(dk, dv, ranks), key_beta);
    };
    const auto kept = [&](const Tensor& tensor) { return exchange.KeptOf(tensor, 1); };
    go_back(kept(q), exchange.tails().kept_runs(), kept(saved[kSavedOut]),
            exchange.KeptOf(saved[kSavedLse], 2), kept(dout), kept(dq), 0.0F);
    WEFT_RETURN_IF_ERROR(taken_dout.Wait().status());
    go_back(saved[kTakenQ], exchange.tails().taken_runs(), saved[kTakenOut], saved[kTakenLse],
            taken_dout.result(), taken_dq, 1.0F);

    PendingTensor returned = exchange.Return(taken_dq, dq, 1, call.Options("dq"));
    return ReduceKeyGradients(lane_, call, blocks, std::move(returned), std::move(dk), std::move(dv));
  }

 private:
  LevelLane lane_;
};

}  // namespace

std::unique_ptr<SequenceAttention> MakeBalancedGatherAttention(const LevelLane& lane) {
  return std::make_unique<BalancedGatherAttention>(lane);
}

}  // namespace weft
