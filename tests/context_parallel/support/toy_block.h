// Block for tests of split attention: y = (sum of attentions of q(x), k(x), v(x)) W.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/context_parallel/context_parallel.h"
#include "weft/nn/attention.h"
#include "weft/nn/linear.h"

namespace weft::testing {

struct ToyBlockOptions {
  // Projections of q, k and v: one each, one with three outputs, or one with a single output that holds
  // all.
  enum class Projections : uint8_t { kOneEach, kThreeOutputs, kOneOutput };

  Projections projections = Projections::kThreeOutputs;
  AttentionLayout layout = AttentionLayout::kBshd;
  std::vector<AttentionMask> attentions = {AttentionMask{}};  // Each takes the same q, k and v.
  std::shared_ptr<const PairMask> pair_mask = nullptr;        // The pass's. Set by the block's forward.
  std::optional<float> scale;
  bool returns_lse = false;  // The attentions do; the block ignores the LSE.
  DType dtype = DType::kF32;
  int64_t dim = 16;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 8;
  int64_t value_dim = 8;
};

// Inputs: x [batch, tokens, dim]. Outputs: those of all projections, [batch, tokens, features].
class ToyProjections : public Module {
 public:
  ToyProjections(std::string name, const ToyBlockOptions& options);

  // Place of q, k or v in the outputs of the projections.
  struct Part {
    Linear* module;
    size_t output;         // Index among the outputs of all projections.
    int output_of_module;  // Index among the outputs of `module`.
    int64_t heads;
    ExchangeSource::Features features;  // Those of the output.
  };
  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<int64_t>& output_features() const { return output_features_; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  Linear* Add(const std::string& child, const std::vector<Linear::Output>& outputs, int64_t dim);

  std::vector<Linear*> modules_;
  std::vector<Part> parts_;  // q, k, v.
  std::vector<int64_t> output_features_;
};

// Inputs: x [batch, tokens, dim]. Outputs: the same.
class ToyBlock : public Module {
 public:
  using Options = ToyBlockOptions;

  ToyBlock(std::string name, const ToyBlockOptions& options);

  const ToyBlockOptions& options() const { return options_; }
  ToyProjections& projections() const { return *projections_; }
  const std::vector<Attention*>& attentions() const { return attentions_; }
  // Neighbors with the sources of q, k and v.
  AttentionNeighbors Neighbors() const;
  // Called between the projections and attention in forward, with q, k and v.
  void SetBetween(std::function<absl::Status(Invocation&, const Tensors&)> between) {
    between_ = std::move(between);
  }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  ToyBlockOptions options_;
  ToyProjections* projections_;
  std::vector<Attention*> attentions_;
  Linear* output_;
  std::function<absl::Status(Invocation&, const Tensors&)> between_;
};

}  // namespace weft::testing
