#include <utility>

#include "src/nn/base/module_checks.h"
#include "src/nn/base/residual.h"
#include "weft/nn/llama.h"

namespace weft {
namespace {

std::string Join(const std::string& parent, const char* child) { return absl::StrCat(parent, ".", child); }

Initializer WeightInitializer(const LlamaConfig& config) {
  return {Initializer::Kind::kNormal, 0.0F, config.init_stddev};
}

Tensor HeadsOf(const Tensor& x, int64_t heads, int64_t head_dim) {
  return x.Reshape({x.dim(0), x.dim(1), heads, head_dim});
}

Tensor ColumnsOf(const Tensor& x) { return x.Reshape({x.dim(0), x.dim(1), x.dim(2) * x.dim(3)}); }

}  // namespace

RopeTables::RopeTables(const LlamaConfig& config) {
  const auto table_of = [&config](int64_t dim) {
    return std::make_shared<RopeTable>(RopeFrequencies(dim, config.rope_theta, config.rope_scaling,
                                                       {config.max_positions, config.rope_sequence}),
                                       RopeAttentionFactor(config.rope_scaling));
  };
  attention = table_of(config.head_dim);
  if (config.sparse_attention.has_value()) indexer = table_of(config.sparse_attention->rope_dim());
}

SelfAttention::SelfAttention(std::string name, const LlamaConfig& config, int64_t layer,
                             const RopeTables& rope_tables)
    : Module(std::move(name)), heads_(config.heads), kv_heads_(config.kv_heads), head_dim_(config.head_dim) {
  const Initializer initializer = WeightInitializer(config);
  const auto projection = [&config](const std::string& projected, int64_t features) {
    return Linear::Output{projected + ".weight", features, config.traits.qkv_bias ? projected + ".bias" : ""};
  };
  projections_ = AddChild(
      std::make_unique<Linear>(this->name(), config.dim,
                               std::vector<Linear::Output>{projection("q_proj", heads_ * head_dim_),
                                                           projection("k_proj", kv_heads_ * head_dim_),
                                                           projection("v_proj", kv_heads_ * head_dim_)},
                               initializer));
  if (config.traits.qk_norm) {
    const auto norm = [&](const char* child) {
      return AddChild(std::make_unique<RmsNorm>(Join(this->name(), child), head_dim_, config.norm_eps));
    };
    query_norm_ = norm("q_norm");
    key_norm_ = norm("k_norm");
  }
  rope_ = AddChild(std::make_unique<Rope>(Join(this->name(), "rope"), rope_tables.attention));
  const std::string attention_name = Join(this->name(), "attention");
  if (config.sparse_attention.has_value()) {
    sparse_attention_ = AddChild(std::make_unique<SparseAttention>(
        attention_name, SparseAttentionOptions{.top_k = config.sparse_attention->top_k}));
  } else {
    attention_ =
        AddChild(std::make_unique<Attention>(attention_name, AttentionOptions{.mask = config.MaskOf(layer)}));
  }
  const std::string bias = config.traits.output_bias ? "bias" : "";
  output_ = AddChild(std::make_unique<Linear>(Join(this->name(), "o_proj"), heads_ * head_dim_,
                                              std::vector<Linear::Output>{{"weight", config.dim, bias}},
                                              initializer));
  if (config.sparse_attention.has_value()) {
    indexer_ = AddChild(std::make_unique<LightningIndexer>(Join(this->name(), "indexer"), config.dim,
                                                           *config.sparse_attention, rope_tables.indexer,
                                                           initializer));
  }
}

absl::StatusOr<Tensors> SelfAttention::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 1));
  WEFT_RETURN_IF_ERROR(CheckTokenDims(*this, inputs[0]));
  WEFT_ASSIGN_OR_RETURN(const Tensors projected, projections_->Forward(invocation, inputs));
  const Tensor q = HeadsOf(projected[0], heads_, head_dim_);
  const Tensor k = HeadsOf(projected[1], kv_heads_, head_dim_);
  const Tensor v = HeadsOf(projected[2], kv_heads_, head_dim_);
  WEFT_ASSIGN_OR_RETURN(const Tensors rotated, Rotate(invocation, {q, k}));
  WEFT_ASSIGN_OR_RETURN(const Tensor mixed, Attend(invocation, inputs[0], {rotated[0], rotated[1], v}));
  return output_->Forward(invocation, {ColumnsOf(mixed)});
}

absl::StatusOr<Tensors> SelfAttention::Rotate(Invocation& invocation, Tensors q_and_k) {
  if (query_norm_ != nullptr) {
    WEFT_ASSIGN_OR_RETURN(const Tensors q, query_norm_->Forward(invocation, {q_and_k[0]}));
    WEFT_ASSIGN_OR_RETURN(const Tensors k, key_norm_->Forward(invocation, {q_and_k[1]}));
    q_and_k = {q[0], k[0]};
  }
  return rope_->Forward(invocation, std::move(q_and_k));
}

absl::StatusOr<Tensors> SelfAttention::RotateBackward(Invocation& invocation, Tensors gradients) {
  WEFT_ASSIGN_OR_RETURN(Tensors rotated, rope_->Backward(invocation, std::move(gradients)));
  if (query_norm_ == nullptr) return rotated;
  WEFT_ASSIGN_OR_RETURN(const Tensors k, key_norm_->Backward(invocation, {rotated[1]}));
  WEFT_ASSIGN_OR_RETURN(const Tensors q, query_norm_->Backward(invocation, {rotated[0]}));
  return Tensors{q[0], k[0]};
}

absl::StatusOr<Tensor> SelfAttention::Attend(Invocation& invocation, const Tensor& x, Tensors qkv) {
  if (sparse_attention_ == nullptr) {
    WEFT_ASSIGN_OR_RETURN(const Tensors mixed, attention_->Forward(invocation, std::move(qkv)));
    return mixed[0];
  }
  WEFT_ASSIGN_OR_RETURN(const Tensors index, indexer_->Forward(invocation, {x}));
  qkv.insert(qkv.end(), index.begin(), index.end());
  WEFT_ASSIGN_OR_RETURN(const Tensors mixed, sparse_attention_->Forward(invocation, std::move(qkv)));
  return mixed[0];
}

absl::StatusOr<Tensors> SelfAttention::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_ASSIGN_OR_RETURN(const Tensors mixed, output_->Backward(invocation, output_gradients));
  WEFT_ASSIGN_OR_RETURN(const Tensors qkv, AttendBackward(invocation, HeadsOf(mixed[0], heads_, head_dim_)));
  WEFT_ASSIGN_OR_RETURN(const Tensors rotated, RotateBackward(invocation, {qkv[0], qkv[1]}));
  return projections_->Backward(invocation,
                                {ColumnsOf(rotated[0]), ColumnsOf(rotated[1]), ColumnsOf(qkv[2])});
}

absl::StatusOr<Tensors> SelfAttention::AttendBackward(Invocation& invocation, Tensor gradient) {
  if (sparse_attention_ == nullptr) return attention_->Backward(invocation, {std::move(gradient)});
  WEFT_ASSIGN_OR_RETURN(Tensors gradients, sparse_attention_->Backward(invocation, {std::move(gradient)}));
  const auto index = gradients.begin() + SparseAttention::kIndexQ;
  WEFT_RETURN_IF_ERROR(indexer_->Backward(invocation, {index[0], index[1], index[2]}).status());
  gradients.resize(SparseAttention::kIndexQ);
  return gradients;
}

FeedForward::FeedForward(std::string name, const LlamaConfig& config) : Module(std::move(name)) {
  const Initializer initializer = WeightInitializer(config);
  projections_ = AddChild(std::make_unique<Linear>(
      this->name(), config.dim,
      std::vector<Linear::Output>{{"gate_proj.weight", config.ffn_dim}, {"up_proj.weight", config.ffn_dim}},
      initializer));
  activation_ =
      AddChild(std::make_unique<GatedUnit>(Join(this->name(), "activation"), config.traits.activation));
  output_ = AddChild(
      std::make_unique<Linear>(Join(this->name(), "down_proj"), config.ffn_dim, config.dim, initializer));
}

absl::StatusOr<Tensors> FeedForward::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_ASSIGN_OR_RETURN(const Tensors projected, projections_->Forward(invocation, inputs));
  WEFT_ASSIGN_OR_RETURN(const Tensors activated, activation_->Forward(invocation, projected));
  return output_->Forward(invocation, activated);
}

absl::StatusOr<Tensors> FeedForward::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_ASSIGN_OR_RETURN(const Tensors activated, output_->Backward(invocation, output_gradients));
  WEFT_ASSIGN_OR_RETURN(const Tensors projected, activation_->Backward(invocation, activated));
  return projections_->Backward(invocation, projected);
}

DecoderBlock::DecoderBlock(std::string name, const LlamaConfig& config, int64_t layer,
                           const RopeTables& rope_tables)
    : Module(std::move(name)) {
  const auto norm = [&](const char* child) {
    return AddChild(std::make_unique<RmsNorm>(Join(this->name(), child), config.dim, config.norm_eps,
                                              config.traits.norm_offset));
  };
  attention_norm_ = norm("input_layernorm");
  attention_ =
      AddChild(std::make_unique<SelfAttention>(Join(this->name(), "self_attn"), config, layer, rope_tables));
  feed_forward_norm_ = norm("post_attention_layernorm");
  feed_forward_ = AddChild(std::make_unique<FeedForward>(Join(this->name(), "mlp"), config));
}

absl::StatusOr<Tensors> DecoderBlock::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_ASSIGN_OR_RETURN(const Tensors attention_input, attention_norm_->Forward(invocation, inputs));
  WEFT_ASSIGN_OR_RETURN(const Tensors middle, attention_->Forward(invocation, attention_input));
  AddInPlace(middle[0], inputs[0]);
  WEFT_ASSIGN_OR_RETURN(const Tensors feed_forward_input, feed_forward_norm_->Forward(invocation, middle));
  WEFT_ASSIGN_OR_RETURN(const Tensors output, feed_forward_->Forward(invocation, feed_forward_input));
  AddInPlace(output[0], middle[0]);
  return output;
}

absl::StatusOr<Tensors> DecoderBlock::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_ASSIGN_OR_RETURN(const Tensors feed_forward_input,
                        feed_forward_->Backward(invocation, output_gradients));
  WEFT_ASSIGN_OR_RETURN(const Tensors middle, feed_forward_norm_->Backward(invocation, feed_forward_input));
  AddInPlace(middle[0], output_gradients[0]);
  WEFT_ASSIGN_OR_RETURN(const Tensors attention_input, attention_->Backward(invocation, middle));
  WEFT_ASSIGN_OR_RETURN(const Tensors input, attention_norm_->Backward(invocation, attention_input));
  AddInPlace(input[0], middle[0]);
  return input;
}

}  // namespace weft
