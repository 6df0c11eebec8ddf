// Gather attention that balances the work of a causal mask: each rank computes the query tail of its mirror
// rank (see QueryTails). Keys and values are gathered as in GatherAttention. The received queries are
// computed first, so that their results travel back while the kept queries are computed.
#include <utility>

#include "context_parallel/layouts/query_tails.h"
#include "context_parallel/schemes/key_gather.h"
#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

// Exchange of query tails with the mirror rank.
//
// Collective: all ranks of the lane's group, in the same order. Lifetime: as SequenceAttention.
class QueryExchange {
 public:
  QueryExchange(const LevelLane& lane, const SequenceParts& sequence) : lane_(lane), tails_(sequence) {}

  const QueryTails& tails() const { return tails_; }
  // The tokens of `own` that are not in the tail.
  Tensor KeptPart(const Tensor& own, int token_dim) const {
    return own.Window(own.view().Slice(token_dim, 0, tails_.kept()));
  }
  // Sends the tail of `own`, whose tokens are dim 1, and returns the mirror's tail.
  absl::StatusOr<PendingTensor> SwapTails(const Tensor& own, OpOptions options) const;
  // Sends `received_part`, which was computed from the mirror's tail, and receives the tail of `result`.
  // Tokens of both are dim `token_dim`.
  PendingTensor ReturnResults(const Tensor& received_part, const Tensor& result, int token_dim,
                              OpOptions options) const;

 private:
  Tensor TailOf(const Tensor& own, int token_dim) const {
    return own.Window(own.view().Slice(token_dim, tails_.kept(), tails_.sent()));
  }
  PendingTensor Swap(const Tensor& send, const Tensor& receive, Tensor result, OpOptions options) const;

  LevelLane lane_;
  QueryTails tails_;
};

absl::StatusOr<PendingTensor> QueryExchange::SwapTails(const Tensor& own, OpOptions options) const {
  Shape shape = own.shape();
  shape[1] = tails_.received();
  WEFT_ASSIGN_OR_RETURN(Tensor received, PoolTensor(*lane_.pool, own.dtype(), shape));
  return Swap(TailOf(own, 1), received, received, std::move(options));
}

PendingTensor QueryExchange::ReturnResults(const Tensor& received_part, const Tensor& result, int token_dim,
                                           OpOptions options) const {
  return Swap(received_part, TailOf(result, token_dim), result, std::move(options));
}

PendingTensor QueryExchange::Swap(const Tensor& send, const Tensor& receive, Tensor result,
                                  OpOptions options) const {
  Work work = lane_.engine->SendReceive(lane_.lane, send.view(), tails_.mirror(), receive.view(),
                                        tails_.mirror(), std::move(options));
  return PendingTensor(std::move(result), std::move(work), {send});
}

// Indices into Result::saved of the received queries with their results, and of the gathered tensors.
enum Saved : uint8_t { kReceivedQ = kSavedCount, kReceivedOut, kReceivedLse, kKeys, kValues };

class BalancedGatherAttention final : public SequenceAttention {
 public:
  explicit BalancedGatherAttention(const LevelLane& lane) : lane_(lane) {}

  absl::StatusOr<PendingTensor> Launch(const SequenceCall& call, AttentionRole role, const Tensor& own,
                                       const Work* after) override {
    if (role != AttentionRole::kQuery) return GatherBlocks(lane_, call, role, own, after);
    return QueryExchange(lane_, *call.sequence).SwapTails(own, call.Options("q"));
  }

  absl::StatusOr<Result> Forward(const SequenceCall& call, Input q, Input k, Input v) override {
    const QueryExchange exchange(lane_, *call.sequence);
    WEFT_ASSIGN_OR_RETURN(const Tensor received_q, q.pending.Wait());
    WEFT_ASSIGN_OR_RETURN(Tensor out, NewOutput(*lane_.pool, q.own, v.own, q.own.dtype()));
    WEFT_ASSIGN_OR_RETURN(Tensor received_out, NewOutput(*lane_.pool, received_q, v.own, q.own.dtype()));
    WEFT_ASSIGN_OR_RETURN(Tensor lse, NewLse(*lane_.pool, q.own));
    WEFT_ASSIGN_OR_RETURN(Tensor received_lse, NewLse(*lane_.pool, received_q));
    const KeyValueBlocks blocks(*call.sequence, k.own, v.own);
    WEFT_ASSIGN_OR_RETURN(const Tensor keys, k.pending.Wait());
    WEFT_ASSIGN_OR_RETURN(const Tensor values, v.pending.Wait());
    const auto key_blocks = blocks.Of(*call.sequence, keys, values, AllRanks(lane_.size()));

    call.kernels->forward(call.problem, received_q.view(), exchange.tails().received_runs(), key_blocks,
                          received_out.view(), received_lse.view());
    PendingTensor returned_out = exchange.ReturnResults(received_out, out, 1, call.Options("out"));
    PendingTensor returned_lse(lse);
    if (call.returns_lse) returned_lse = exchange.ReturnResults(received_lse, lse, 2, call.Options("lse"));
    call.kernels->forward(call.problem, exchange.KeptPart(q.own, 1).view(), exchange.tails().kept_runs(),
                          key_blocks, exchange.KeptPart(out, 1).view(), exchange.KeptPart(lse, 2).view());
    WEFT_RETURN_IF_ERROR(returned_out.Wait().status());
    WEFT_RETURN_IF_ERROR(returned_lse.Wait().status());
    const int rank = lane_.rank();
    WEFT_ASSIGN_OR_RETURN(Result result, MakeResult(*lane_.pool, call, q.own, blocks.keys.Block(keys, rank),
                                                    blocks.values.Block(values, rank), out, lse));
    if (call.saves) {
      result.saved.insert(result.saved.end(), {received_q, received_out, received_lse, keys, values});
    }
    return result;
  }

  absl::StatusOr<Gradients> Backward(const SequenceCall& call, const Tensors& saved,
                                     const Tensor& dout) override {
    const QueryExchange exchange(lane_, *call.sequence);
    WEFT_ASSIGN_OR_RETURN(PendingTensor received_dout, exchange.SwapTails(dout, call.Options("dout")));
    const Tensor& q = saved[kSavedQ];
    const KeyValueBlocks blocks(*call.sequence, saved[kSavedK], saved[kSavedV]);
    const std::vector<int> ranks = AllRanks(lane_.size());
    const auto key_blocks = blocks.Of(*call.sequence, saved[kKeys], saved[kValues], ranks);
    WEFT_ASSIGN_OR_RETURN(Tensor dq, PoolTensor(*lane_.pool, q.dtype(), q.shape()));
    WEFT_ASSIGN_OR_RETURN(Tensor received_dq, PoolTensor(*lane_.pool, q.dtype(), saved[kReceivedQ].shape()));
    WEFT_ASSIGN_OR_RETURN(Tensor dk, NewGradientBlocks(lane_, blocks.keys));
    WEFT_ASSIGN_OR_RETURN(Tensor dv, NewGradientBlocks(lane_, blocks.values));
    const auto backward = [&](const Tensor& queries, const TokenRuns& runs, const Tensor& out,
                              const Tensor& lse, const Tensor& gradient, const Tensor& target,
                              float key_beta) {
      call.kernels->backward(
          call.problem, queries.view(), runs, key_blocks,
          {.lse = lse.view(), .delta = ComputeDelta(out, gradient).view(), .dout = gradient.view()},
          {.dq = target.view(), .keys = blocks.GradientsOf(dk, dv, ranks), .key_beta = key_beta});
    };
    const auto kept = [&](const Tensor& tensor) { return exchange.KeptPart(tensor, 1); };
    backward(kept(q), exchange.tails().kept_runs(), kept(saved[kSavedOut]),
             exchange.KeptPart(saved[kSavedLse], 2), kept(dout), kept(dq), 0.0F);
    WEFT_RETURN_IF_ERROR(received_dout.Wait().status());
    backward(saved[kReceivedQ], exchange.tails().received_runs(), saved[kReceivedOut], saved[kReceivedLse],
             received_dout.result(), received_dq, 1.0F);

    PendingTensor returned_dq = exchange.ReturnResults(received_dq, dq, 1, call.Options("dq"));
    return ReduceKeyGradients(lane_, call, blocks, std::move(returned_dq), std::move(dk), std::move(dv));
  }

 private:
  LevelLane lane_;
};

}  // namespace

std::unique_ptr<SequenceAttention> MakeBalancedGatherAttention(const LevelLane& lane) {
  return std::make_unique<BalancedGatherAttention>(lane);
}

}  // namespace weft
