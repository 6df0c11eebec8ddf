// A layer with explicit forward and backward, children, parameters and hooks. There is no tape: a module's
// backward calls its children's backward in the reverse order of its forward.
//
// Thread safety: none; one thread drives a model.
// Call order, for each invocation: Forward (Backward)?, each pair nested as calls are.
// Lifetime: children and parameters are owned by their module and never move. A module may save its inputs
//   and outputs for backward, so nobody overwrites them, but where the module's header allows it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/core/status.h"
#include "weft/nn/invocation.h"
#include "weft/nn/parameter.h"

namespace weft {

// Makes memory for a tensor; uninitialised, row-major.
using TensorAllocator = std::function<absl::StatusOr<Tensor>(DType, Shape)>;

// Where a module's results are made; empty: Tensor::Empty.
struct ResultAllocators {
  TensorAllocator outputs, input_gradients;
};

class Module {
 public:
  // Hooks run in the order they were added. Forward pre-hooks may replace the inputs, post-hooks the outputs;
  // the same in backward with the gradients of the outputs and of the inputs. A hook must not add or remove
  // hooks of its module.
  using Hook = std::function<absl::Status(Module&, Invocation&, Tensors&)>;
  using HookId = int;

  explicit Module(std::string name) : name_(std::move(name)) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Path from the root, "model.layers.0.mlp"; parameters append to it.
  const std::string& name() const { return name_; }

  absl::StatusOr<Tensors> Forward(Invocation& invocation, Tensors inputs);
  // Gradients of the outputs in, gradients of the inputs out (an undefined tensor where an input has none,
  // such as token ids). Parameter gradients go straight into Parameter::grad.
  absl::StatusOr<Tensors> Backward(Invocation& invocation, Tensors output_gradients);

  // On: forward keeps this module's inputs only, and backward computes it again before it goes on: after the
  // backward pre-hooks, so that the parameters they gather serve both. Its own forward hooks do not run
  // again; those of modules below do. Results are the same to the bit. To be changed between passes only; not
  // for a module that overwrites its inputs (see Lifetime).
  void SetActivationCheckpointing(bool on) { checkpoints_ = on; }

  // For results that others than this rank read, which must lie in memory that they reach. Used by the
  // modules whose header says so; to be changed between passes only.
  void SetResultAllocators(ResultAllocators allocators) { allocators_ = std::move(allocators); }

  HookId AddForwardPreHook(Hook hook);
  HookId AddForwardPostHook(Hook hook);
  HookId AddBackwardPreHook(Hook hook);
  HookId AddBackwardPostHook(Hook hook);
  // Called when forward or backward of this module fails, in a hook or below it, with the error; also when an
  // exception passes, which goes on afterwards.
  using ErrorHook = std::function<void(Module&, const absl::Status&)>;
  HookId AddErrorHook(ErrorHook hook);
  void RemoveHook(HookId id);

  const std::vector<Module*>& children() const { return children_; }
  // The module's own parameters, without its children's.
  const std::vector<std::shared_ptr<Parameter>>& parameters() const { return parameters_; }
  // This module and all below it, parents first, in order of registration.
  std::vector<Module*> Descendants();
  // All parameters below, each once (a tied one where it was first met).
  std::vector<std::shared_ptr<Parameter>> AllParameters();

 protected:
  // Registration, in constructors. A parameter's name becomes "<module name>.<name>". Sharing ties a
  // parameter to another module's.
  Parameter* AddParameter(std::string name, Shape shape, Initializer initializer);
  Parameter* ShareParameter(std::shared_ptr<Parameter> parameter);
  template <typename M>
  M* AddChild(std::unique_ptr<M> child) {
    M* raw = child.get();
    owned_children_.push_back(std::move(child));
    children_.push_back(raw);
    return raw;
  }

  // Memory for a result.
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
  // The result of `pass`, which error hooks learn of if it is none.
  template <typename Pass>
  absl::StatusOr<Tensors> Reported(const Pass& pass);
  void ReportError(const absl::Status& error);
  absl::StatusOr<Tensors> ForwardForRecompute(Invocation& invocation, const Tensors& inputs);
  absl::StatusOr<Tensors> RecomputeAndBackward(Invocation& invocation, const Tensors& output_gradients);

  std::string name_;
  std::vector<std::unique_ptr<Module>> owned_children_;
  std::vector<Module*> children_;
  std::vector<std::shared_ptr<Parameter>> parameters_;
  Hooks forward_pre_, forward_post_, backward_pre_, backward_post_;
  std::vector<Registered<ErrorHook>> error_hooks_;
  ResultAllocators allocators_;
  HookId next_hook_ = 0;
  bool checkpoints_ = false;
};

}  // namespace weft
