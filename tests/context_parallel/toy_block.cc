#include "tests/context_parallel/toy_block.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/add_run.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

using Projections = ToyBlockOptions::Projections;

constexpr Initializer kWeights = {Initializer::Kind::kNormal, 0.0F, 0.3F};

void Add(const Tensor& addend, const Tensor& sum) {
  AddRun(addend.view().data, addend.dtype(), sum.view().data, sum.dtype(), sum.elements());
}

// The heads of a part of an output, in attention's layout.
TensorView HeadsOf(const TensorView& output, int64_t heads, const AttentionSource::Features& features,
                   AttentionLayout layout) {
  TensorView part = output.Slice(2, features.first, features.count);
  const int64_t head_dim = features.count / heads;
  part.shape = {part.shape[0], part.shape[1], heads, head_dim};
  part.strides = {part.strides[0], part.strides[1], head_dim, 1};
  return AsBshd(part, layout);
}

}  // namespace

ToyBlock::ToyBlock(std::string name, const ToyBlockOptions& options)
    : Module(std::move(name)), options_(options) {
  const int64_t q = options.heads * options.head_dim;
  const int64_t k = options.kv_heads * options.head_dim;
  const int64_t v = options.kv_heads * options.value_dim;
  const auto project = [&](const std::string& child, const std::vector<Linear::Output>& outputs) {
    return projections_.emplace_back(AddChild(
        std::make_unique<Linear>(absl::StrCat(this->name(), ".", child), options.dim, outputs, kWeights)));
  };
  if (options.projections == Projections::kOneEach) {
    parts_ = {{project("q", {{"weight", q}}), 0, options.heads, {0, q}},
              {project("k", {{"weight", k}}), 0, options.kv_heads, {0, k}},
              {project("v", {{"weight", v}}), 0, options.kv_heads, {0, v}}};
  } else if (options.projections == Projections::kThreeOutputs) {
    Linear* qkv = project("qkv", {{"q", q}, {"k", k}, {"v", v}});
    parts_ = {{qkv, 0, options.heads, {0, q}},
              {qkv, 1, options.kv_heads, {0, k}},
              {qkv, 2, options.kv_heads, {0, v}}};
  } else {
    Linear* qkv = project("qkv", {{"weight", q + k + v}});
    parts_ = {{qkv, 0, options.heads, {0, q}},
              {qkv, 0, options.kv_heads, {q, k}},
              {qkv, 0, options.kv_heads, {q + k, v}}};
  }
  for (const AttentionMask& mask : options.attentions) {
    AttentionOptions attention;
    attention.mask = mask;
    attention.layout = options.layout;
    attentions_.push_back(AddChild(std::make_unique<Attention>(
        absl::StrCat(this->name(), ".attention.", attentions_.size()), attention)));
  }
  output_ = AddChild(std::make_unique<Linear>(absl::StrCat(this->name(), ".output"),
                                              options.heads * options.value_dim, options.dim, kWeights));
}

AttentionNeighbours ToyBlock::Neighbours() const {
  AttentionNeighbours neighbours;
  neighbours.heads = options_.heads;
  neighbours.kv_heads = options_.kv_heads;
  AttentionSource* sources[] = {&neighbours.query, &neighbours.key, &neighbours.value};
  for (size_t i = 0; i < parts_.size(); ++i) {
    sources[i]->module = parts_[i].module;
    if (options_.projections == Projections::kThreeOutputs) sources[i]->output = parts_[i].output;
    if (fused()) sources[i]->features = parts_[i].features;
  }
  neighbours.consumer = output_;
  return neighbours;
}

absl::StatusOr<Tensors> ToyBlock::Project(Invocation& invocation, const Tensor& x) {
  std::vector<Tensors> outputs;
  for (Linear* projection : projections_) {
    WEFT_ASSIGN_OR_RETURN(outputs.emplace_back(), projection->Forward(invocation, {x}));
  }
  Tensors qkv;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Tensors& made = outputs[projections_.size() == 1 ? 0 : i];
    const Tensor& output = made[static_cast<size_t>(parts_[i].output)];
    qkv.push_back(
        output.Window(HeadsOf(output.view(), parts_[i].heads, parts_[i].features, options_.layout)));
  }
  return qkv;
}

absl::StatusOr<Tensors> ToyBlock::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_ASSIGN_OR_RETURN(const Tensors qkv, Project(invocation, inputs[0]));
  if (between_) WEFT_RETURN_IF_ERROR(between_());
  Tensor sum;
  for (Attention* attention : attentions_) {
    WEFT_ASSIGN_OR_RETURN(const Tensors outputs, attention->Forward(invocation, qkv));
    const Tensor mixed = outputs[0].Window(AsBshd(outputs[0].view(), options_.layout)).Copy();
    if (sum.defined()) {
      Add(mixed, sum);
    } else {
      sum = mixed;
    }
  }
  return output_->Forward(invocation, {sum.Reshape({sum.dim(0), sum.dim(1), sum.dim(2) * sum.dim(3)})});
}

absl::StatusOr<Tensors> ToyBlock::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_ASSIGN_OR_RETURN(const Tensors merged, output_->Backward(invocation, output_gradients));
  const Tensor dout =
      merged[0].Reshape({merged[0].dim(0), merged[0].dim(1), options_.heads, options_.value_dim});
  const Tensor arranged = dout.Window(AsBshd(dout.view(), options_.layout));
  Tensors sums;
  for (auto attention = attentions_.rbegin(); attention != attentions_.rend(); ++attention) {
    WEFT_ASSIGN_OR_RETURN(Tensors gradients, (*attention)->Backward(invocation, {arranged}));
    if (sums.empty()) {
      sums = std::move(gradients);
    } else {
      for (size_t i = 0; i < sums.size(); ++i) Add(gradients[i], sums[i]);
    }
  }
  WEFT_ASSIGN_OR_RETURN(Tensor dx, ProjectBackward(invocation, sums));
  return Tensors{std::move(dx)};
}

absl::StatusOr<Tensor> ToyBlock::ProjectBackward(Invocation& invocation, const Tensors& gradients) {
  std::vector<Tensors> by_module(projections_.size());
  const int64_t batch = AsBshd(gradients[0].view(), options_.layout).shape[0];
  const int64_t tokens = AsBshd(gradients[0].view(), options_.layout).shape[1];
  int64_t fused_features = 0;
  for (const Part& part : parts_) fused_features += part.features.count;
  for (size_t i = 0; i < parts_.size(); ++i) {
    Tensors& outputs = by_module[projections_.size() == 1 ? 0 : i];
    if (!fused() || outputs.empty()) {
      const int64_t features = fused() ? fused_features : parts_[i].features.count;
      outputs.push_back(Tensor::Empty(gradients[i].dtype(), {batch, tokens, features}));
    }
    const AttentionSource::Features place = parts_[i].features;
    WEFT_RETURN_IF_ERROR(StridedCopy(
        gradients[i].view(), HeadsOf(outputs.back().view(), parts_[i].heads, place, options_.layout)));
  }
  Tensor dx;
  for (size_t i = projections_.size(); i-- > 0;) {
    WEFT_ASSIGN_OR_RETURN(const Tensors part, projections_[i]->Backward(invocation, by_module[i]));
    if (dx.defined()) {
      Add(part[0], dx);
    } else {
      dx = part[0];
    }
  }
  return dx;
}

}  // namespace weft::testing
