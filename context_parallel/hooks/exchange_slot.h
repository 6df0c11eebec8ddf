// A slot of ExchangeHooks: the exchange of one tensor, which its consumers share, and the sum of their
// gradients.
//
// Note [Shared exchanges]
// Problem: several consumers take one tensor. It is to be exchanged once, and so is the sum of their
// gradients. A consumer may also run without a backward, or again to recompute activations.
// Rule: the first consumer takes the exchange from the source, or launches it. The slot keeps the exchange,
// with its local tensor, until every consumer has taken it. Each consumer that saves for a backward must give
// one gradient, which backward adds. The consumer whose gradient comes last launches the exchange of the sum.
// Without a source it also returns the result, since it is the first of the consumers that took the tensor;
// the others return negative zeros.
// Why it suffices: backward runs in the reverse order of forward, so no consumer takes an exchange after the
// first gradient. If the backward of a consumer was left out, its gradient is still missing when the source's
// backward begins, and counts as zero; the source's hook then exchanges the sum.
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

  // Takes the exchange of `input`, or launches it. Null if the input stays as it is.
  absl::StatusOr<Handle> Take(Invocation& invocation, const Tensor& input);
  // Waits for the exchanged tensor. Once for each Take.
  absl::StatusOr<Tensor> Read(Invocation& invocation, const Handle& exchange);
  // Adds the gradient of a consumer that saved; undefined: none. The last one starts the exchange of the sum.
  absl::Status AddGradient(Invocation& invocation, const Handle& exchange, const Tensor& gradient);
  // The gradient for the consumer to return, after AddGradient of the same one.
  absl::StatusOr<Tensor> InputGradient(Invocation& invocation, const Handle& exchange,
                                       const Tensor& gradient);

 private:
  // State in an invocation.
  struct Records {
    std::vector<Handle> shared;              // Not read by all consumers.
    std::vector<Handle> awaiting_gradients;  // Exchanges of a call of the source, with gradients to come.
  };

  absl::StatusOr<LaunchedTensor> Launch(Invocation& invocation, const Tensor& local, int64_t& counter);
  absl::StatusOr<Handle> TakeFirst(Invocation& invocation, const Tensor& input);
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
