#include "context_parallel/hooks/consumer_link.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {

ConsumerLink::ConsumerLink(Module& module)
    : module_(module),
      hooks_({module.AddForwardPreHook([this](Module&, Invocation& invocation, Tensors& inputs) {
                return BeforeForward(invocation, inputs);
              }),
              module.AddBackwardPostHook([this](Module&, Invocation& invocation, Tensors& gradients) {
                return AfterBackward(invocation, gradients);
              })}) {}

ConsumerLink::~ConsumerLink() {
  for (const Module::HookId hook : hooks_) module_.RemoveHook(hook);
}

absl::Status ConsumerLink::Add(ExchangeSlot& slot, size_t input) {
  for (const Input& present : inputs_) {
    if (present.index != input) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("input ", input, " of ", module_.name(), " is that of slot '", present.slot->name(),
                     "' already, so slot '", slot.name(), "' cannot have it: name another input"));
  }
  inputs_.push_back({&slot, input});
  slot.AddConsumer();
  return absl::OkStatus();
}

// All exchanges are launched before the first is waited for.
absl::Status ConsumerLink::BeforeForward(Invocation& invocation, Tensors& inputs) {
  Shares shares;
  for (const Input& input : inputs_) {
    if (input.index >= inputs.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(module_.name(), " was given ", inputs.size(), " inputs, but slot '",
                       input.slot->name(), "' is for input ", input.index, ": name an existing one"));
    }
    WEFT_ASSIGN_OR_RETURN(shares.emplace_back(), input.slot->Take(invocation, module_, inputs[input.index]));
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].exchange == nullptr) continue;
    WEFT_ASSIGN_OR_RETURN(inputs[inputs_[i].index], inputs_[i].slot->Read(invocation, shares[i]));
  }
  if (invocation.is_saving()) invocation.State<Calls>(this).push_back(std::move(shares));
  return absl::OkStatus();
}

absl::Status ConsumerLink::AfterBackward(Invocation& invocation, Tensors& input_gradients) {
  auto& calls = invocation.State<Calls>(this);
  WEFT_CHECK(!calls.empty(), "a consumer's backward without its forward");
  const Shares shares = std::move(calls.back());
  calls.pop_back();
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].exchange == nullptr) continue;
    if (inputs_[i].index >= input_gradients.size()) {
      return absl::InternalError(absl::StrCat(
          "the backward of ", module_.name(), " returned ", input_gradients.size(), " gradients, but input ",
          inputs_[i].index, " was exchanged: return one for every input"));
    }
    WEFT_RETURN_IF_ERROR(ExchangeSlot::AddGradient(shares[i], input_gradients[inputs_[i].index]));
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].exchange == nullptr) continue;
    WEFT_RETURN_IF_ERROR(inputs_[i].slot->ReturnSum(invocation, shares[i]));
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].exchange == nullptr) continue;
    Tensor& gradient = input_gradients[inputs_[i].index];
    WEFT_ASSIGN_OR_RETURN(gradient, inputs_[i].slot->InputGradient(invocation, shares[i], gradient));
  }
  return absl::OkStatus();
}

}  // namespace weft
