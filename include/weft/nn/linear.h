// Linear layer, and its low-rank adapters.
//
// Linear: y_i = x W_i^T + b_i for one or several weights W_i [out_features_i, in_features] with the
// same input, such as the query, key and value projections. The weights are adjacent in the parameter list,
// and the biases, if there are any, follow them. A bias starts at zero. The matrix products of forward add
// the bias, and those of backward add up the gradient of x, without separate passes.
//
// Inputs: x [..., in_features]. Outputs: y_i [..., out_features_i] in the dtype of x; the caller may
// overwrite them. The module's ResultAllocators allocate the outputs and the gradient of x.
// Saves: x, unless all its readers in backward are frozen. Backward writes or adds dW_i = dy_i^T x to the
// gradient of each W_i, and the sum of dy_i over the tokens to that of each b_i, summed in fp32 and rounded
// once. A frozen W_i costs no product for its gradient.
//
// Adapters (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021): with matrices
// A_i [rank, in_features] and B_i [out_features_i, rank], an output becomes
//   y_i = x W_i^T + b_i + scaling (x A_i^T) B_i^T
// Only the adapters are trained; AddLora freezes all other parameters. At the start B_i is zero, so that the
// outputs are those of the model without adapters. Saves in addition: scaling x A_i^T, [tokens, rank].
// With dropout, each adapter of a training pass takes x times a mask of its own: see weft/nn/dropout.h, with
// the name "base_model.model.<layer>.lora_dropout" in place of a module's. Backward draws the mask again.
//
//   WEFT_ASSIGN_OR_RETURN(const LoraOptions lora, AddLora(*model, {.rank = 16, .alpha = 32}));
//   FullyShard(*model, model->units(), mesh, engine, policy, loader);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/nn/module.h"

namespace weft {

class Linear : public Module {
 public:
  struct Output {
    std::string parameter;  // The part of the parameter's name after the module's name: "q_proj.weight".
    int64_t features;
    std::string bias = "";  // The same of the bias: "q_proj.bias". Empty: no bias.
  };

  // One weight, named "weight", and no bias.
  Linear(std::string name, int64_t in_features, int64_t out_features, Initializer initializer = {});
  Linear(std::string name, int64_t in_features, const std::vector<Output>& outputs,
         Initializer initializer = {});

  size_t outputs() const { return biases_.size(); }
  // Adds an adapter to an output. Its parameters have PEFT's names, those of LoraNames. A is drawn uniformly
  // within 1 / sqrt(in_features) of 0, as PEFT does; B is zero.
  // REQUIRES: the output has no adapter, and no parameter of the model has memory yet; rank >= 1;
  // 0 <= dropout < 1.
  void AddAdapter(size_t output, int64_t rank, float scaling, float dropout = 0);
  bool has_adapter(size_t output) const { return adapters_[output].has_value(); }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  struct Adapter {
    Parameter* a;
    Parameter* b;
    float scaling;
    float dropout;
    std::string mask;  // Name of the dropout's mask.
  };
  absl::StatusOr<Tensor> ForwardOf(const Tensor& x, size_t output) const;
  // The input of an adapter: x, or x times the adapter's mask.
  static absl::StatusOr<Tensor> AdapterInput(const Invocation& invocation, const Adapter& adapter,
                                             const Tensor& x);
  // `x`: the adapter's input. Adds the adapter's part to `y`. Returns scaling x A^T, in the dtype of x.
  Tensor AddAdapterOutput(const Adapter& adapter, const Tensor& x, const Tensor& y) const;
  // Adds the adapter's part to `dx` and to its own gradients. `low`: the result of AddAdapterOutput. `x`, the
  // module's input, may be undefined if A is frozen.
  absl::Status AdapterBackward(const Invocation& invocation, const Adapter& adapter, const Tensor& x,
                               const Tensor& low, const Tensor& dy, const Tensor& dx) const;
  // True if backward reads x.
  bool NeedsInput() const;

  int64_t in_features_;
  std::vector<Parameter*> biases_;                // For each output; null without a bias.
  std::vector<std::optional<Adapter>> adapters_;  // For each output.
};

// Low-rank adapters of a model. The defaults are those of PEFT.
struct LoraOptions {
  static constexpr const char* kAllLinear = "all-linear";

  int64_t rank = 8;
  double alpha = 8;
  // The linear layers with adapters, each by its name in transformers or the last parts of it: "q_proj" or
  // "layers.0.self_attn.q_proj". {kAllLinear}: all of them, but not a language model's head.
  std::vector<std::string> targets = {"q_proj", "v_proj"};
  // Probability with which an element of an adapter's input is dropped in training. Passes with gradients
  // then need a RandomKey (weft/nn/invocation.h).
  double dropout = 0;

  float scaling() const { return static_cast<float>(alpha / static_cast<double>(rank)); }
};

// Adds adapters to the Linear layers below `model`, and freezes all other parameters. Returns the options,
// with the names of layers for kAllLinear.
// REQUIRES: the parameters have no memory yet: neither sharded nor materialized.
// Errors: kInvalidArgument (a rank below 1, an alpha that is not positive, a dropout outside of [0, 1), no
// target, or one that is no Linear layer: lists those there are), kFailedPrecondition (the model has
// adapters). Nothing is changed.
absl::StatusOr<LoraOptions> AddLora(Module& model, LoraOptions options);

// Names of an adapter's parameters: "base_model.model.<layer>.lora_A.weight" and the same with lora_B.
struct LoraNames {
  std::string a, b;
};
// `weight`: the name of the adapted weight, "<layer>.weight".
LoraNames LoraNamesOf(std::string_view weight);
// True for A or B of an adapter.
bool IsLoraParameter(const Parameter& parameter);

}  // namespace weft
