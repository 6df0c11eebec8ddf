// A block whose attentions can be split in every way: y = sum of attentions(q, k, v of x) W.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/context_parallel/context_parallel.h"
#include "weft/nn/attention.h"
#include "weft/nn/linear.h"

namespace weft::testing {

struct ToyBlockOptions {
  // What makes q, k and v: a projection each, one with three outputs, or one with one output that holds them
  // all.
  enum class Projections : uint8_t { kOneEach, kThreeOutputs, kOneOutput };

  Projections projections = Projections::kThreeOutputs;
  AttentionLayout layout = AttentionLayout::kBshd;
  std::vector<AttentionMask> attentions = {AttentionMask{}};  // Each takes the same q, k and v.
  int64_t dim = 16;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 8;
  int64_t value_dim = 8;
};

// Inputs: x [batch, tokens, dim]. Outputs: the same.
class ToyBlock : public Module {
 public:
  ToyBlock(std::string name, const ToyBlockOptions& options);

  const std::vector<Attention*>& attentions() const { return attentions_; }
  // With the sources of q, k and v that the projections allow.
  AttentionNeighbours Neighbours() const;
  // Called between the projections and attention in forward.
  void SetBetween(std::function<absl::Status()> between) { between_ = std::move(between); }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  struct Part {
    Linear* module;
    int output;
    int64_t heads;
    AttentionSource::Features features;  // Of the output.
  };
  bool fused() const { return options_.projections == ToyBlockOptions::Projections::kOneOutput; }
  absl::StatusOr<Tensors> Project(Invocation& invocation, const Tensor& x);
  absl::StatusOr<Tensor> ProjectBackward(Invocation& invocation, const Tensors& gradients);

  ToyBlockOptions options_;
  std::vector<Linear*> projections_;
  std::vector<Part> parts_;  // q, k, v.
  std::vector<Attention*> attentions_;
  Linear* output_;
  std::function<absl::Status()> between_;
};

}  // namespace weft::testing
