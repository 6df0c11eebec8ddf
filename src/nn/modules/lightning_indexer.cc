#include "weft/nn/sparse/lightning_indexer.h"

#include <cmath>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "src/nn/base/module_checks.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

constexpr float kNormEps = 1e-6F;

}  // namespace

bool IsIndexerParameter(const Parameter& parameter) { return absl::StrContains(parameter.name, ".indexer."); }

LightningIndexer::LightningIndexer(std::string name, int64_t dim, const SparseAttentionConfig& config,
                                   std::shared_ptr<RopeTable> rope_table, Initializer initializer)
    : Module(std::move(name)), heads_(config.index_heads), index_dim_(config.index_dim) {
  projections_ = AddChild(std::make_unique<Linear>(
      this->name(), dim,
      std::vector<Linear::Output>{
          {"wq.weight", heads_ * index_dim_}, {"wk.weight", index_dim_}, {"weights_proj.weight", heads_}},
      initializer));
  k_norm_ =
      AddChild(std::make_unique<LayerNorm>(absl::StrCat(this->name(), ".k_norm"), index_dim_, kNormEps));
  rope_ = AddChild(
      std::make_unique<Rope>(absl::StrCat(this->name(), ".rope"), std::move(rope_table), index_dim_));
}

float LightningIndexer::WeightScale() const {
  return 1.0F / std::sqrt(static_cast<float>(heads_ * index_dim_));
}

absl::StatusOr<Tensors> LightningIndexer::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 1));
  WEFT_RETURN_IF_ERROR(CheckTokenDims(*this, inputs[0]));
  WEFT_ASSIGN_OR_RETURN(const Tensors projected, projections_->Forward(invocation, inputs));
  WEFT_ASSIGN_OR_RETURN(const Tensors normed, k_norm_->Forward(invocation, {projected[1]}));
  const int64_t batch = inputs[0].dim(0);
  const int64_t tokens = inputs[0].dim(1);
  WEFT_ASSIGN_OR_RETURN(const Tensors rotated,
                        rope_->Forward(invocation, {projected[0].Reshape({batch, tokens, heads_, index_dim_}),
                                                    normed[0].Reshape({batch, tokens, 1, index_dim_})}));
  WEFT_RETURN_IF_ERROR(invocation.CheckWritable(projected[2], name()));
  WEFT_RETURN_IF_ERROR(StridedCopy(projected[2].view(), projected[2].view(), WeightScale()));
  return Tensors{rotated[0], rotated[1], projected[2]};
}

absl::StatusOr<Tensors> LightningIndexer::BackwardImpl(Invocation& invocation,
                                                       const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckContiguousGradients(*this, output_gradients, 3));
  const int64_t batch = output_gradients[0].dim(0);
  const int64_t tokens = output_gradients[0].dim(1);
  const Tensor weights = invocation.WritableOrCopy(output_gradients[2]);
  WEFT_RETURN_IF_ERROR(StridedCopy(weights.view(), weights.view(), WeightScale()));
  WEFT_ASSIGN_OR_RETURN(const Tensors rotated,
                        rope_->Backward(invocation, {output_gradients[0], output_gradients[1]}));
  WEFT_ASSIGN_OR_RETURN(const Tensors normed,
                        k_norm_->Backward(invocation, {rotated[1].Reshape({batch, tokens, index_dim_})}));
  const Tensor q = rotated[0].Reshape({batch, tokens, heads_ * index_dim_});
  WEFT_RETURN_IF_ERROR(projections_->Backward(invocation, {q, normed[0], weights}).status());
  return Tensors{Tensor()};
}

}  // namespace weft
