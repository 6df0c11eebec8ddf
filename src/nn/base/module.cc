#include "weft/nn/module.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <absl/container/flat_hash_set.h>

#include "src/nn/base/module_checks.h"
#include "weft/core/spans.h"

namespace weft {
namespace {

absl::StatusOr<Tensor> Allocate(const TensorAllocator& allocator, DType dtype, Shape shape) {
  return allocator ? allocator(dtype, std::move(shape)) : Tensor::Empty(dtype, std::move(shape));
}

absl::Status EscapedException(const std::string& module, const std::string& what) {
  return absl::InternalError(absl::StrCat("an exception escaped module '", module, "': ", what));
}

}  // namespace

absl::StatusOr<Tensors> Module::Forward(Invocation& invocation, Tensors inputs) {
  const Span span("forward", [&] { return name_; });
  return WithErrorHooks([&] { return RunForward(invocation, std::move(inputs)); });
}

absl::StatusOr<Tensors> Module::Backward(Invocation& invocation, Tensors output_gradients) {
  const Span span("backward", [&] { return name_; });
  return WithErrorHooks([&] { return RunBackward(invocation, std::move(output_gradients)); });
}

template <typename Pass>
absl::StatusOr<Tensors> Module::WithErrorHooks(const Pass& pass) {
  try {
    absl::StatusOr<Tensors> result = pass();
    if (!result.ok()) RunErrorHooks(result.status());
    return result;
  } catch (const std::exception& exception) {
    RunErrorHooks(EscapedException(name_, exception.what()));
    throw;
  } catch (...) {
    // A scope guard would not suffice: if no caller catches the exception, std::terminate may run without
    // unwinding the stack.
    RunErrorHooks(EscapedException(name_, "its type is not derived from std::exception"));
    throw;
  }
}

void Module::RunErrorHooks(const absl::Status& error) {
  for (const auto& registered : error_hooks_) registered.hook(*this, error);
}

absl::StatusOr<Tensors> Module::RunForward(Invocation& invocation, Tensors inputs) {
  invocation.BeginCall(*this);
  WEFT_RETURN_IF_ERROR(RunHooks(forward_pre_, invocation, inputs));
  WEFT_RETURN_IF_ERROR(CheckParameterMemory(*this));
  WEFT_ASSIGN_OR_RETURN(Tensors outputs, uses_checkpointing_ ? ForwardCheckpointed(invocation, inputs)
                                                             : ForwardImpl(invocation, inputs));
  invocation.NoteOutputs(*this, outputs);
  WEFT_RETURN_IF_ERROR(RunHooks(forward_post_, invocation, outputs));
  invocation.EndCall(*this);
  return outputs;
}

absl::StatusOr<Tensors> Module::RunBackward(Invocation& invocation, Tensors output_gradients) {
  WEFT_RETURN_IF_ERROR(RunHooks(backward_pre_, invocation, output_gradients));
  WEFT_RETURN_IF_ERROR(CheckGradientMemory(*this));
  WEFT_RETURN_IF_ERROR(invocation.CheckGradients(*this, output_gradients));
  WEFT_ASSIGN_OR_RETURN(Tensors input_gradients, uses_checkpointing_
                                                     ? BackwardCheckpointed(invocation, output_gradients)
                                                     : BackwardImpl(invocation, output_gradients));
  WEFT_RETURN_IF_ERROR(invocation.FinishCall(*this));
  WEFT_RETURN_IF_ERROR(RunHooks(backward_post_, invocation, input_gradients));
  return input_gradients;
}

absl::StatusOr<Tensors> Module::ForwardCheckpointed(Invocation& invocation, const Tensors& inputs) {
  invocation.SaveInputs(this, inputs);
  const Invocation::NoSaveScope scope(invocation);
  return ForwardImpl(invocation, inputs);
}

absl::StatusOr<Tensors> Module::BackwardCheckpointed(Invocation& invocation,
                                                     const Tensors& output_gradients) {
  const Tensors inputs = invocation.PopInputs(this);
  const Invocation::NewSaveScope scope(invocation);
  {
    const Span span("recompute", [&] { return name_; });
    WEFT_RETURN_IF_ERROR(ForwardImpl(invocation, inputs).status());
  }
  WEFT_ASSIGN_OR_RETURN(Tensors input_gradients, BackwardImpl(invocation, output_gradients));
  WEFT_RETURN_IF_ERROR(invocation.CheckCallsFinished(*this));
  return input_gradients;
}

absl::Status Module::RunHooks(const Hooks& hooks, Invocation& invocation, Tensors& tensors) {
  for (const auto& registered : hooks) {
    WEFT_RETURN_IF_ERROR(registered.hook(*this, invocation, tensors));
  }
  return absl::OkStatus();
}

Module::HookId Module::AddHook(Hooks& hooks, Hook hook) {
  hooks.push_back({next_hook_, std::move(hook)});
  return next_hook_++;
}

Module::HookId Module::AddForwardPreHook(Hook hook) { return AddHook(forward_pre_, std::move(hook)); }
Module::HookId Module::AddForwardPostHook(Hook hook) { return AddHook(forward_post_, std::move(hook)); }
Module::HookId Module::AddBackwardPreHook(Hook hook) { return AddHook(backward_pre_, std::move(hook)); }
Module::HookId Module::AddBackwardPostHook(Hook hook) { return AddHook(backward_post_, std::move(hook)); }

Module::HookId Module::AddErrorHook(ErrorHook hook) {
  error_hooks_.push_back({next_hook_, std::move(hook)});
  return next_hook_++;
}

void Module::RemoveHook(HookId id) {
  const auto has_id = [id](const auto& registered) { return registered.id == id; };
  for (Hooks* hooks : {&forward_pre_, &forward_post_, &backward_pre_, &backward_post_}) {
    std::erase_if(*hooks, has_id);
  }
  std::erase_if(error_hooks_, has_id);
}

absl::StatusOr<Tensor> Module::NewOutput(DType dtype, Shape shape) const {
  return Allocate(allocators_.outputs, dtype, std::move(shape));
}

absl::StatusOr<Tensor> Module::NewInputGradient(DType dtype, Shape shape) const {
  return Allocate(allocators_.input_gradients, dtype, std::move(shape));
}

std::vector<Module*> Module::Descendants() {
  std::vector<Module*> modules = {this};
  for (Module* child : children_) {
    const std::vector<Module*> below = child->Descendants();
    modules.insert(modules.end(), below.begin(), below.end());
  }
  return modules;
}

std::vector<std::shared_ptr<Parameter>> Module::AllParameters() {
  std::vector<std::shared_ptr<Parameter>> parameters;
  absl::flat_hash_set<const Parameter*> seen;
  for (const Module* module : Descendants()) {
    for (const std::shared_ptr<Parameter>& parameter : module->parameters_) {
      if (seen.insert(parameter.get()).second) parameters.push_back(parameter);
    }
  }
  return parameters;
}

Parameter* Module::AddParameter(std::string name, Shape shape, Initializer initializer) {
  auto parameter = std::make_shared<Parameter>();
  parameter->name = name_.empty() ? std::move(name) : absl::StrCat(name_, ".", name);
  parameter->shape = std::move(shape);
  parameter->initializer = initializer;
  return ShareParameter(std::move(parameter));
}

Parameter* Module::ShareParameter(std::shared_ptr<Parameter> parameter) {
  parameters_.push_back(std::move(parameter));
  return parameters_.back().get();
}

}  // namespace weft
