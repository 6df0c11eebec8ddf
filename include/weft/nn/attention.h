// Grouped-query attention (Ainslie et al., "GQA", 2023): query head h reads key and value head h / (heads /
// kv_heads). Softmax and all sums are in fp32. No [tokens, keys] matrix is stored (see attention_kernel.h).
//
// Inputs: q [batch, tokens, heads, head_dim], k [batch, keys, kv_heads, head_dim], v [batch, keys, kv_heads,
//   value_dim]; with layout kBhsd the two middle dims are swapped. One dtype, f32, bf16 or f16. The innermost
//   stride is 1; other strides are free. The number of keys equals the number of tokens, unless the mask is
//   not causal and no sequence is set. The invocation's sequence() gives the documents and positions of the
//   tokens; its pair_mask() may hide further pairs. With its kv_cache(), queries also attend to the keys of
//   earlier passes.
// Outputs: out [batch, tokens, heads, value_dim] in the layout and dtype of q; with `returns_lse` also the
//   log-sum-exp of each query's scores [batch, heads, tokens], f32, which takes no gradient.
// Saves: q, k, v, out and the log-sum-exp. REQUIRES: none of them is overwritten before backward.
// The module's ResultAllocators allocate the outputs and the gradients of the inputs.
// Errors: kInvalidArgument (shapes, dtypes, mask or scale), kFailedPrecondition (a sequence that is split
//   over ranks, without an AttentionOperator), and those of KvCache::Append.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

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

// Keys and values of the tokens that a model has read so far, for each of its attentions. With it, a model
// generates in passes: the first has the prompt (prefill), each further one a token that follows.
//
// The sequence is one document, of the same length in all rows of the batch. Invocation::SetSequence gives
// each pass the positions of its tokens, which begin where the last pass ended.
//
// Memory: 2 capacity kv_heads head_dim elements for each row of the batch and each attention, in the dtype of
// the keys, allocated in the first pass.
// Thread safety: none; one thread drives a model.
// Lifetime: the attentions must outlive it.
class KvCache {
 public:
  // `capacity`: tokens of the longest sequence.
  explicit KvCache(int64_t capacity) : capacity_(capacity) {}

  // All keys and values of an attention, as views of the cache: [batch, tokens, kv_heads, dim].
  struct Keys {
    TensorView k, v;
  };
  // Appends `k` and `v` [batch, tokens, kv_heads, dim], whose first token has position `position`.
  // Errors: kFailedPrecondition (the position is not the number of cached tokens), kInvalidArgument (no
  // capacity is left; another batch size than in the first pass). Messages begin with the attention's name.
  absl::StatusOr<Keys> Append(const Attention& attention, const TensorView& k, const TensorView& v,
                              int64_t position);
  int64_t capacity() const { return capacity_; }
  int64_t bytes() const;

 private:
  struct Entry {
    Tensor k, v;  // [batch, capacity, kv_heads, dim]
    int64_t tokens = 0;
  };
  int64_t capacity_;
  absl::flat_hash_map<const Attention*, Entry> entries_;
};

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
  const AttentionOperator* attention_operator() const { return operator_.get(); }  // Null: there is none.

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  absl::Status CheckInputs(const Tensors& inputs) const;
  absl::Status CheckCaching(const Invocation& invocation) const;
  absl::StatusOr<Tensors> ForwardLocal(Invocation& invocation, const Tensors& inputs) const;
  absl::StatusOr<Tensors> BackwardLocal(Invocation& invocation, const Tensors& output_gradients) const;

  AttentionOptions options_;
  std::shared_ptr<AttentionOperator> operator_;  // Null: ForwardLocal and BackwardLocal.
};

}  // namespace weft
