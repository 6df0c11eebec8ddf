// Grouped-query attention (Ainslie et al., "GQA", 2023): query head h reads key and value head h / (heads /
// kv_heads). Softmax and all sums are in fp32. No [tokens, keys] matrix is stored (see attention_kernel.h).
//
// Inputs: q [batch, tokens, heads, head_dim], k [batch, keys, kv_heads, head_dim], v [batch, keys, kv_heads,
//   value_dim]; with layout kBhsd the two middle dims are swapped. One dtype, f32 or bf16. The innermost
//   stride is 1; other strides are free. The number of keys equals the number of tokens, unless the mask is
//   not causal and no sequence is set. The invocation's sequence() gives the documents and positions of the
//   tokens; its pair_mask() may hide further pairs.
// Outputs: out [batch, tokens, heads, value_dim] in the layout and dtype of q; with `returns_lse` also the
//   log-sum-exp of each query's scores [batch, heads, tokens], f32, which takes no gradient.
// Saves: q, k, v, out and the log-sum-exp. REQUIRES: none of them is overwritten before backward.
// The module's ResultAllocators allocate the outputs and the gradients of the inputs.
// Errors: kInvalidArgument (shapes, dtypes, mask or scale), kFailedPrecondition (a sequence that is split
//   over ranks, without an AttentionOperator).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "weft/nn/attention_kernel.h"
#include "weft/nn/module.h"

namespace weft {

// Order of the dims: [batch, seq, heads, head_dim], or [batch, heads, seq, head_dim].
enum class AttentionLayout : uint8_t { kBshd, kBhsd };

// A view of the same memory as [batch, tokens, heads, dim]. Applied to its result, it gives the original view
// again.
TensorView AsBshd(const TensorView& view, AttentionLayout layout);

struct AttentionOptions {
  AttentionMask mask = {};
  std::optional<float> scale = std::nullopt;  // Positive factor of the scores. None: DefaultScale(head_dim).
  AttentionLayout layout = AttentionLayout::kBshd;
  bool returns_lse = false;
};

class Attention;

// Replacement for the local computation of an Attention, such as one that exchanges keys with other ranks.
// The tensors have the module's layout and have passed its checks. An operator saves what its backward needs
// with Invocation::Save, under the address of the module.
class AttentionOperator {
 public:
  virtual ~AttentionOperator() = default;
  // Returns the outputs: out, and the log-sum-exp if the module returns it.
  virtual absl::StatusOr<Tensors> Forward(Invocation& invocation, const Attention& attention,
                                          const Tensors& inputs) = 0;
  // Returns the gradients of q, k and v.
  virtual absl::StatusOr<Tensors> Backward(Invocation& invocation, const Attention& attention,
                                           const Tensors& output_gradients) = 0;
};

class Attention : public Module {
 public:
  explicit Attention(std::string name, AttentionOptions options = {})
      : Module(std::move(name)), options_(options) {}

  absl::Span<const std::string_view> input_names() const override;  // q, k, v.
  const AttentionOptions& options() const { return options_; }
  float ScaleFor(int64_t head_dim) const { return options_.scale.value_or(DefaultScale(head_dim)); }
  // Null selects the computation on this rank alone. REQUIRES: no pass is in flight.
  void SetOperator(std::shared_ptr<AttentionOperator> attention_operator) {
    operator_ = std::move(attention_operator);
  }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  absl::Status CheckInputs(const Tensors& inputs) const;
  absl::StatusOr<Tensors> ForwardLocal(Invocation& invocation, const Tensors& inputs) const;
  absl::StatusOr<Tensors> BackwardLocal(Invocation& invocation, const Tensors& output_gradients) const;

  AttentionOptions options_;
  std::shared_ptr<AttentionOperator> operator_;  // Null: ForwardLocal and BackwardLocal.
};

}  // namespace weft
