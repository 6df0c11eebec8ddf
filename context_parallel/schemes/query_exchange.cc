#include "context_parallel/schemes/query_exchange.h"

#include <utility>

#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {

Tensor QueryExchange::KeptOf(const Tensor& own, int token_dim) const {
  return own.Window(own.view().Slice(token_dim, 0, tails_.kept()));
}

Tensor QueryExchange::GivenOf(const Tensor& own, int token_dim) const {
  return own.Window(own.view().Slice(token_dim, tails_.kept(), tails_.given()));
}

PendingTensor QueryExchange::Swap(const Tensor& send, const Tensor& receive, Tensor result,
                                  OpOptions options) const {
  Work work = lane_.engine->SendReceive(lane_.lane, send.view(), tails_.mirror(), receive.view(),
                                        tails_.mirror(), std::move(options));
  return PendingTensor(std::move(result), std::move(work), {send});
}

absl::StatusOr<PendingTensor> QueryExchange::Take(const Tensor& own, OpOptions options) const {
  Shape shape = own.shape();
  shape[1] = tails_.taken();
  WEFT_ASSIGN_OR_RETURN(Tensor taken, PoolTensor(*lane_.pool, own.dtype(), shape));
  return Swap(GivenOf(own, 1), taken, taken, std::move(options));
}

PendingTensor QueryExchange::Return(const Tensor& made, const Tensor& result, int token_dim,
                                    OpOptions options) const {
  return Swap(made, GivenOf(result, token_dim), result, std::move(options));
}

}  // namespace weft
