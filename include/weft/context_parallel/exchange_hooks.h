// Hooks that exchange tensors between the modules of a model: an exchange is launched as soon as a module has
// made the tensor, and is waited for where another module takes it.
//
// A *slot* is a tensor with its exchange. Its *source* is the module that makes the tensor; its *consumers*
// are the modules that take it as an input.
//
//   forward    the source's hook launches the exchange when the output is ready; the modules between source
//              and consumers overlap it. Before a consumer's forward its hook waits, and replaces the input
//              by the exchanged tensor.
//   backward   after a consumer's backward its hook takes the gradient of that input. When the last consumer
//              has given its gradient, the sum is exchanged back. The source's backward waits for the result
//              and adds it to the gradient of its output.
//
// One exchange serves all consumers of a tensor, and one exchange returns the sum of their gradients. The sum
// is formed in f32, in the order of the backwards. A tensor that no source has launched, such as that of a
// slot without a source, is exchanged by the first consumer that takes it, which also returns its gradient:
// with the same bits.
//
// If the backward of a source fails after it was given the gradients of the exchange, as for a gradient that
// is not contiguous, it cannot be repeated: kFailedPrecondition.
//
// The backward of a consumer may be left out; its gradient counts as zero. Without a source, the first
// consumer is an exception: if it is left out but another gave a gradient, the backward of the module that
// called it fails with kFailedPrecondition. This holds even if nobody reads the gradient, because frozen
// layers made the tensor: name their last module as the source, or run the first consumer's backward. If no
// module has called the first consumer, no backward can fail, and the gradient of the tensor is lost.
//
//   ExchangeHooks hooks;
//   WEFT_RETURN_IF_ERROR(hooks.AddSlot({.name = "keys", .source = {&projection, 1}, .heads = 8,
//                                       .exchange = SequenceGather(*exchange, "keys")}));
//   WEFT_RETURN_IF_ERROR(hooks.AddConsumer("keys", attention, "k"));
//   WEFT_RETURN_IF_ERROR(hooks.AddConsumer("keys", statistics, 0));
//
// Undefined tensors and tensors of integers pass through unchanged. Slots keep their state by invocation and
// by call: sources and consumers may run several times in a pass, or again to recompute activations.
//
// Thread safety: none; belongs to the thread that drives the model.
// REQUIRES: no pass is in flight when slots or consumers are added, or the object is destroyed. A consumer
//   does not overwrite its inputs, and returns the gradient of an exchanged input in memory of its own. All
//   ranks add the same slots and consumers, in the same order.
// Lifetime: sources, consumers and exchanges' engines must outlive this object, which must outlive the
//   invocations of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/context_parallel/pending_tensor.h"
#include "weft/core/tensor.h"
#include "weft/nn/module.h"

namespace weft {

// Module and output that make a tensor. Name the last module that writes the output. If a later module would
// overwrite it in place, as Rope does, that module fails.
struct ExchangeSource {
  struct Features {
    int64_t first;
    int64_t count;
  };

  Module* module = nullptr;  // Null: the tensor has no known source.
  // Index of the output. Unset: the module's only output. If it is unset and the module has several outputs,
  // the consumer launches the exchange.
  std::optional<int> output = {};
  // Range of the last dim of an output that holds more than this tensor, such as that of a fused projection.
  std::optional<Features> features = {};
};

// Exchange of a tensor, and of its gradient in the other direction.
//
// Collective: Launch and Return, by all ranks that take part, in the same order.
class SlotExchange {
 public:
  virtual ~SlotExchange() = default;

  // Starts the exchange of `local`. Returns an invalid PendingTensor if the tensor stays as it is, for
  // instance in a group of one rank.
  // REQUIRES: no rank overwrites `local` any more.
  virtual absl::StatusOr<PendingTensor> Launch(Invocation& invocation, const Tensor& local) = 0;
  // Starts the exchange that turns the gradient of Launch's result, in f32 or in its dtype, into the gradient
  // of `local`, contiguous and in `dtype`. The caller may overwrite the result. Not called for a tensor that
  // stays as it is.
  virtual absl::StatusOr<PendingTensor> Return(Invocation& invocation, const Tensor& gradient,
                                               DType dtype) = 0;
};

class ExchangeHooks {
 public:
  struct Slot {
    std::string name;  // Unique; appears in messages.
    ExchangeSource source = {};
    // The consumers take the source's output [batch, tokens, features] as [batch, tokens, heads, features /
    // heads]. 0: they take it in the shape that the source gives it.
    int64_t heads = 0;
    std::shared_ptr<SlotExchange> exchange = {};
  };

  ExchangeHooks();
  ~ExchangeHooks();  // Removes all hooks.
  ExchangeHooks(const ExchangeHooks&) = delete;
  ExchangeHooks& operator=(const ExchangeHooks&) = delete;

  // Errors: kInvalidArgument (the name is taken; no exchange; a number of heads, an output or features below
  // 0).
  absl::Status AddSlot(Slot slot);

  // `consumer` takes the slot's tensor as its input at a position, or as the input with a name of
  // Module::input_names.
  // Errors: kInvalidArgument (no slot of that name; the input has no such position or name; another slot has
  // this input already).
  absl::Status AddConsumer(std::string_view slot, Module& consumer, int input);
  absl::Status AddConsumer(std::string_view slot, Module& consumer, std::string_view input);

  // Exchanges since the start. Monotonic. Tensors that stay as they are do not count.
  struct Counters {
    int64_t launched_by_sources = 0;
    int64_t launched_by_consumers = 0;
    int64_t returned = 0;  // Exchanges of gradients.
  };
  const Counters& counters() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
