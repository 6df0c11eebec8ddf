// Attention with grouped queries: query head h reads key and value head h / (heads / kv_heads). Softmax and
// all sums are in fp32; no tokens x tokens matrix exists (see attention_kernel.h).
//
// Inputs: q [batch, tokens, heads, head_dim], k [batch, keys, kv_heads, head_dim], v [batch, keys, kv_heads,
// value_dim], or with the two middle dims swapped (kBhsd); any strides but an innermost of 1. As many keys as
// tokens, but without a causal mask and a set sequence. Outputs: [batch, tokens, heads, value_dim] in the
// same layout, which is saved and must not be overwritten before backward; then, if asked for, the
// log-sum-exp of each query's scores [batch, heads, tokens], f32, which takes no gradient. Which tokens they
// are is the invocation's sequence(). Outputs and gradients are made by the module's ResultAllocators.
// Errors: kInvalidArgument (shapes, dtypes, a mask or a scale that do not fit), kFailedPrecondition (a
// sequence that is
//   split over ranks, without an operator that brings their keys).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "weft/nn/attention_kernel.h"
#include "weft/nn/module.h"

namespace weft {

// The order of dims: batch, sequence, heads, head dim; or batch, heads, sequence, head dim.
enum class AttentionLayout : uint8_t { kBshd, kBhsd };

// [batch, tokens, heads, dim], the same memory. Also the other way round: it swaps two dims.
TensorView AsBshd(const TensorView& view, AttentionLayout layout);

struct AttentionOptions {
  AttentionMask mask = {};
  std::optional<float> scale = std::nullopt;  // Of the scores, positive; DefaultScale(head_dim) if none.
  AttentionLayout layout = AttentionLayout::kBshd;
  bool returns_lse = false;
};

class Attention;

// How an attention is computed: alone (the default), or together with other ranks. Saves in the invocation
// what backward needs, under the address of the module. Tensors are in the module's layout, and checked.
class AttentionOperator {
 public:
  virtual ~AttentionOperator() = default;
  // The outputs: with lse if the module returns it.
  virtual absl::StatusOr<Tensors> Forward(Invocation& invocation, const Attention& attention,
                                          const Tensors& inputs) = 0;
  // The gradients of q, k and v.
  virtual absl::StatusOr<Tensors> Backward(Invocation& invocation, const Attention& attention,
                                           const Tensors& output_gradients) = 0;
};

class Attention : public Module {
 public:
  explicit Attention(std::string name, AttentionOptions options = {})
      : Module(std::move(name)), options_(options) {}

  const AttentionOptions& options() const { return options_; }
  float ScaleFor(int64_t head_dim) const { return options_.scale.value_or(DefaultScale(head_dim)); }
  // To be changed between passes only. Null: on this rank alone.
  void SetOperator(std::shared_ptr<AttentionOperator> computes) { operator_ = std::move(computes); }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  absl::Status CheckInputs(const Tensors& inputs) const;
  absl::StatusOr<Tensors> ForwardAlone(Invocation& invocation, const Tensors& inputs) const;
  absl::StatusOr<Tensors> BackwardAlone(Invocation& invocation, const Tensors& output_gradients) const;

  AttentionOptions options_;
  std::shared_ptr<AttentionOperator> operator_;
};

}  // namespace weft
