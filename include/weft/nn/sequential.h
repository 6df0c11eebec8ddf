// Containers of modules: Sequential runs its children one after the other, Residual also adds its input.
//
//   Sequential mlp("mlp");
//   mlp.Add<Linear>("up", 16, 64);  // Its weight is "mlp.up.weight".
//   mlp.Add<Gelu>("gelu");
//   mlp.Add<Linear>("down", 64, 16);
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>

#include "weft/nn/module.h"

namespace weft {

// Chain of modules: the outputs of each child are the inputs of the next. Without children, the outputs are
// the inputs.
// Saves: nothing itself.
class Sequential : public Module {
 public:
  using Module::Module;

  // Appends a child of type M, constructed from the name "<this name>.<name>" and `arguments`. With an empty
  // `name` the child has this module's name.
  template <typename M, typename... Arguments>
  M& Add(const std::string& name, Arguments&&... arguments) {
    const char* dot = this->name().empty() || name.empty() ? "" : ".";
    return *AddChild(
        std::make_unique<M>(absl::StrCat(this->name(), dot, name), std::forward<Arguments>(arguments)...));
  }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

// Residual connection: y = x + f(x), where f is the chain of the children. The sum is formed in fp32 and
// rounded once.
//
// Inputs: x, f32, bf16 or f16. Outputs: y of the same shape and dtype, in memory of its own. Saves: nothing
// itself. While the children run, x and the gradient of y have a reader (see Invocation::AddReader).
// Errors: kInvalidArgument (f does not keep shape and dtype), kFailedPrecondition (a child would overwrite x,
//   as a Rope at the head of the chain).
class Residual : public Sequential {
 public:
  using Sequential::Sequential;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

}  // namespace weft
