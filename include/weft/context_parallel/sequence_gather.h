// Exchange of a slot along the sequence: from this rank's tokens to those of all ranks.
#pragma once

#include <memory>
#include <string>

#include "weft/context_parallel/exchange_hooks.h"
#include "weft/context_parallel/sequence_exchange.h"

namespace weft {

// Launch gathers [batch, own tokens, ...] to [batch, all tokens, ...], in rank order. Return reduce-scatters
// the gradient in f32: each rank gets the sum for its own tokens. The invocation's sequence() gives the
// tokens of each rank. In a group of one rank the tensor stays as it is. Results lie in node memory.
//
// `label` names the exchange in messages and traces; it is the same on all ranks.
// Errors: kFailedPrecondition (the invocation's sequence is not split over the exchange's ranks), those of
//   SequenceExchange.
// Lifetime: `exchange` must outlive the result.
std::shared_ptr<SlotExchange> SequenceGather(SequenceExchange& exchange, std::string label);

}  // namespace weft
