// Connection between slots and a module that takes their tensors as inputs, a *consumer*. Its hooks replace
// the inputs by the exchanged tensors before forward, and take the gradients of these inputs after backward.
#pragma once

#include <cstddef>
#include <vector>

#include "context_parallel/hooks/exchange_slot.h"

namespace weft {

class ConsumerLink {
 public:
  explicit ConsumerLink(Module& module);
  ~ConsumerLink();
  ConsumerLink(const ConsumerLink&) = delete;
  ConsumerLink& operator=(const ConsumerLink&) = delete;

  const Module& module() const { return module_; }
  // Errors: kInvalidArgument (a slot has this input already).
  absl::Status Add(ExchangeSlot& slot, size_t input);

 private:
  struct Input {
    ExchangeSlot* slot;
    size_t index;
  };
  using Shares = std::vector<ExchangeSlot::Share>;  // By input of `inputs_`.
  using Calls = std::vector<Shares>;                // Calls whose backward has not run.

  absl::Status BeforeForward(Invocation& invocation, Tensors& inputs);
  absl::Status AfterBackward(Invocation& invocation, Tensors& input_gradients);

  Module& module_;
  std::vector<Input> inputs_;
  std::vector<Module::HookId> hooks_;
};

}  // namespace weft
