// Base class of layers: explicit forward and backward, child modules, parameters, and hooks as
// torch.nn.Module has them. There is no autograd tape: a module's BackwardImpl calls Backward of its children
// in the reverse order of its forward.
//
// Conventions of all modules: activations and their gradients are contiguous tensors [..., features] of f32,
// bf16 or f16, unless the module's header says otherwise. The data of parameters have the dtype of the
// activations.
//
// Thread safety: none; one thread drives a model.
// Call order within an invocation: at most one Backward for each Forward, in the reverse order of the
// Forwards.
// Errors: kInvalidArgument (number, shape, strides or dtype of the inputs, or of the gradients that backward
//   is given; a module's header adds to these), kFailedPrecondition (a parameter is sharded, or has no memory
//   for its gradient). Messages begin with the module's name. A module that has no children and is not
//   checkpointed checks these first: its backward can be called again when the cause is gone, unless its
//   hooks say otherwise.
// REQUIRES: the caller does not overwrite a module's inputs and outputs before its backward, because the
//   module may have saved them. The headers of the modules state the exceptions.
// Lifetime: a module owns its children and parameters. They never move.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/core/status.h"
#include "weft/nn/invocation.h"
#include "weft/nn/parameter.h"

namespace weft {

// Allocates an uninitialized, row-major tensor.
using TensorAllocator = std::function<absl::StatusOr<Tensor>(DType, Shape)>;

// Allocators of a module's outputs and of the gradients of its inputs. If one is empty, the module uses
// Tensor::Empty.
struct ResultAllocators {
  TensorAllocator outputs, input_gradients;
};

class Module {
 public:
  // Hooks of four kinds, with PyTorch's meaning. Each kind receives one list of tensors and may replace it:
  //   forward pre-hook    the inputs, before forward                       (register_forward_pre_hook)
  //   forward post-hook   the outputs, after forward                       (register_forward_hook)
  //   backward pre-hook   the gradients of the outputs, before backward    (register_full_backward_pre_hook)
  //   backward post-hook  the gradients of the inputs, after backward      (register_full_backward_hook)
  // Hooks of one kind run in the order in which they were added. The pass stops at the first hook that fails.
  // REQUIRES: a hook does not add or remove hooks of its own module.
  using Hook = std::function<absl::Status(Module&, Invocation&, Tensors&)>;
  using HookId = int;

  explicit Module(std::string name) : name_(std::move(name)) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Path from the root module, such as "model.layers.0.mlp". A parameter's name is this path and a suffix.
  const std::string& name() const { return name_; }

  // Names of the inputs, by position. Empty: the inputs have no names.
  virtual absl::Span<const std::string_view> input_names() const { return {}; }

  absl::StatusOr<Tensors> Forward(Invocation& invocation, Tensors inputs);
  // Takes the gradients of the outputs and returns the gradients of the inputs. An input without a gradient,
  // such as token ids, has an undefined tensor there. Gradients of parameters are written or added to
  // Parameter::grad.
  // Errors: also kFailedPrecondition (no Forward of this invocation waits for its backward; BackwardImpl left
  // out a child: Note [Calls without backward]).
  absl::StatusOr<Tensors> Backward(Invocation& invocation, Tensors output_gradients);

  // With activation checkpointing (torch.utils.checkpoint), forward saves only this module's inputs, and
  // backward recomputes the forward first. The recompute runs after the backward pre-hooks, so that one
  // unshard of the parameters serves both. This module's forward hooks do not run again; those of the modules
  // below it do. Results are bitwise the same.
  // REQUIRES: no pass is in flight; the module does not overwrite its inputs.
  void SetActivationCheckpointing(bool on) { uses_checkpointing_ = on; }

  // Sets the allocators of this module's results, for results that other ranks read in place (see
  // PoolTensor). Only modules whose header says so use them. REQUIRES: no pass is in flight.
  void SetResultAllocators(ResultAllocators allocators) { allocators_ = std::move(allocators); }
  const ResultAllocators& result_allocators() const { return allocators_; }

  HookId AddForwardPreHook(Hook hook);
  HookId AddForwardPostHook(Hook hook);
  HookId AddBackwardPreHook(Hook hook);
  HookId AddBackwardPostHook(Hook hook);
  // Called with the error when Forward or Backward of this module fails: in a hook, in the module or in one
  // below it. Also called when an exception escapes; the exception is rethrown.
  using ErrorHook = std::function<void(Module&, const absl::Status&)>;
  HookId AddErrorHook(ErrorHook hook);
  void RemoveHook(HookId id);

  const std::vector<Module*>& children() const { return children_; }
  // The module's own parameters, without those of its children.
  const std::vector<std::shared_ptr<Parameter>>& parameters() const { return parameters_; }
  // This module and all modules below it, parents first, in order of registration.
  std::vector<Module*> Descendants();
  // The parameters of all Descendants(), each once. A tied parameter comes at its first use.
  std::vector<std::shared_ptr<Parameter>> AllParameters();

 protected:
  // Registration. REQUIRES: no parameter of the model has memory yet; a child is added in the constructor, a
  // parameter there or by a function whose header says so. AddParameter names the parameter
  // "<module name>.<name>". ShareParameter ties this module to a parameter of another module.
  Parameter* AddParameter(std::string name, Shape shape, Initializer initializer);
  Parameter* ShareParameter(std::shared_ptr<Parameter> parameter);
  template <typename M>
  M* AddChild(std::unique_ptr<M> child) {
    M* raw = child.get();
    owned_children_.push_back(std::move(child));
    children_.push_back(raw);
    return raw;
  }

  // Allocate a result with the module's ResultAllocators.
  absl::StatusOr<Tensor> NewOutput(DType dtype, Shape shape) const;
  absl::StatusOr<Tensor> NewInputGradient(DType dtype, Shape shape) const;

  virtual absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) = 0;
  virtual absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) = 0;

 private:
  template <typename Function>
  struct Registered {
    HookId id;
    Function hook;
  };
  using Hooks = std::vector<Registered<Hook>>;
  HookId AddHook(Hooks& hooks, Hook hook);
  absl::Status RunHooks(const Hooks& hooks, Invocation& invocation, Tensors& tensors);
  absl::StatusOr<Tensors> RunForward(Invocation& invocation, Tensors inputs);
  absl::StatusOr<Tensors> RunBackward(Invocation& invocation, Tensors output_gradients);
  // Runs `pass` and returns its result. Calls the error hooks if it fails or throws.
  template <typename Pass>
  absl::StatusOr<Tensors> WithErrorHooks(const Pass& pass);
  void RunErrorHooks(const absl::Status& error);
  absl::StatusOr<Tensors> ForwardCheckpointed(Invocation& invocation, const Tensors& inputs);
  absl::StatusOr<Tensors> BackwardCheckpointed(Invocation& invocation, const Tensors& output_gradients);

  std::string name_;
  std::vector<std::unique_ptr<Module>> owned_children_;
  std::vector<Module*> children_;
  std::vector<std::shared_ptr<Parameter>> parameters_;
  Hooks forward_pre_, forward_post_, backward_pre_, backward_post_;
  std::vector<Registered<ErrorHook>> error_hooks_;
  ResultAllocators allocators_;
  HookId next_hook_ = 0;
  bool uses_checkpointing_ = false;
};

}  // namespace weft
