// Modules made of modules: one after the other, and added to their input.
//
//   Sequential mlp("mlp");
//   mlp.Add<Linear>("up", 16, 64);  // Its weight is "mlp.up.weight".
//   mlp.Add<Gelu>("gelu");
//   mlp.Add<Linear>("down", 64, 16);
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/nn/module.h"

namespace weft {

// The outputs of each child are the inputs of the next; without children, outputs are the inputs.
class Sequential : public Module {
 public:
  using Module::Module;

  // Appends an M, named "<this name>.<name>" and constructed from that name and `arguments`.
  template <typename M, typename... Arguments>
  M& Add(const std::string& name, Arguments&&... arguments) {
    const std::string path = this->name().empty() ? name : absl::StrCat(this->name(), ".", name);
    return *AddChild(std::make_unique<M>(path, std::forward<Arguments>(arguments)...));
  }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

// y = x + f(x), f being the children one after the other; the sum is formed in fp32 and rounded once.
//
// Inputs: x. Outputs: y, of the same shape and dtype as f(x).
class Residual : public Sequential {
 public:
  using Sequential::Sequential;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

}  // namespace weft
