// A slot of ExchangeHooks: the exchange of one tensor, which its consumers share, and the sum of their
// gradients.
//
// Note [Shared exchanges]
// Problem: several consumers take one tensor. It is to be exchanged once, and so is the sum of their
// gradients. A consumer may also run without a backward, or again to recompute activations.
// Rule: the first consumer takes the exchange from the source, or launches it. The slot keeps the exchange,
// with its local tensor, until every consumer has taken it. Each consumer that saves for a backward must give
// one gradient, which backward adds. The consumer whose gradient comes last launches the exchange of the sum.
// Without a source it also returns the result; the others return negative zeros.
// Why it suffices: backward runs in the reverse order of forward, so no consumer takes an exchange after the
// first gradient, and the gradient of the first consumer that saved comes last. The backward of others may be
// left out; their gradients count as zero. With a source, its hook exchanges the sum if gradients are missing
// when its backward begins. Without one, the first consumer does not wait for missing gradients. If its own
// backward is left out, nothing could return the sum, and the backward that called it fails.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "context_parallel/hooks/source_link.h"

namespace weft {

class ExchangeSlot {
 public:
  ExchangeSlot(ExchangeHooks::Slot slot, ExchangeHooks::Counters& counters);

  const std::string& name() const { return name_; }
  void AddConsumer() { ++consumers_; }

  // An exchange in an invocation.
  struct Exchange {
    Tensor local;  // As the consumers are given it.
    PendingTensor exchanged;
    SourceLink::Origin origin;
    int unread = 0;             // Consumers that have not read it.
    int missing_gradients = 0;  // Consumers whose gradient has not come.
    Tensor sum;                 // The sum of the gradients.
    bool owns_sum = false;      // Otherwise it is the first consumer's gradient itself.
    PendingTensor returned;
  };
  using Handle = std::shared_ptr<Exchange>;
  // The exchange as one consumer takes it.
  struct Share {
    Handle exchange;        // Null: the input stays as it is.
    bool is_first = false;  // Of those that saved.
  };

  // Takes the exchange of `input` for the running call of `consumer`, or launches it.
  absl::StatusOr<Share> Take(Invocation& invocation, const Module& consumer, const Tensor& input);
  // Waits for the exchanged tensor. Once for each Take.
  absl::StatusOr<Tensor> Read(Invocation& invocation, const Share& share);
  // Adds the gradient of a consumer that saved; undefined: none.
  static absl::Status AddGradient(const Share& share, const Tensor& gradient);
  // Starts the exchange of the sum if it waits for no further gradient. Call it after AddGradient for all
  // inputs of the consumer.
  absl::Status ReturnSum(Invocation& invocation, const Share& share);
  // The gradient for the consumer to return, after ReturnSum.
  absl::StatusOr<Tensor> InputGradient(Invocation& invocation, const Share& share, const Tensor& gradient);

 private:
  // State in an invocation.
  struct Records {
    std::vector<Handle> shared;              // Not read by all consumers.
    std::vector<Handle> awaiting_gradients;  // Exchanges of a call of the source, with gradients to come.
  };

  absl::StatusOr<LaunchedTensor> Launch(Invocation& invocation, const Tensor& local, int64_t& counter);
  absl::StatusOr<Handle> TakeFirst(Invocation& invocation, const Tensor& input);
  // Notes that a consumer which saves has taken the exchange.
  Share ExpectGradient(Invocation& invocation, const Module& consumer, const Handle& exchange);
  void StopSharing(Invocation& invocation, Records& records, const Handle& exchange) const;
  absl::Status StartReturn(Invocation& invocation, Exchange& exchange);
  // Exchanges the sum of a call of the source to which gradients are missing.
  absl::Status Complete(Invocation& invocation, int64_t call);

  const std::string name_;
  const std::string reader_purpose_;
  const std::shared_ptr<SlotExchange> exchange_;
  ExchangeHooks::Counters& counters_;
  int consumers_ = 0;
  SourceLink link_;
};

}  // namespace weft
