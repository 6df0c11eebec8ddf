#include "tests/context_parallel/support/toy_block.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/add_run.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

using Projections = ToyBlockOptions::Projections;

constexpr Initializer kWeights = {Initializer::Kind::kNormal, 0.0F, 0.3F};

void AddTo(const Tensor& addend, const Tensor& sum) {
  AddRun(addend.view().data, addend.dtype(), sum.view().data, sum.dtype(), sum.elements());
}

// View of one part of an output as heads, in the layout of the attention.
TensorView HeadsOf(const TensorView& output, int64_t heads, const ExchangeSource::Features& features,
                   AttentionLayout layout) {
  TensorView part = output.Slice(2, features.first, features.count);
  const int64_t head_dim = features.count / heads;
  part.shape = {part.shape[0], part.shape[1], heads, head_dim};
  part.strides = {part.strides[0], part.strides[1], head_dim, 1};
  return AsBshd(part, layout);
}

}  // namespace

ToyProjections::ToyProjections(std::string name, const ToyBlockOptions& options) : Module(std::move(name)) {
  const int64_t q = options.heads * options.head_dim;
  const int64_t k = options.kv_heads * options.head_dim;
  const int64_t v = options.kv_heads * options.value_dim;
  if (options.projections == Projections::kOneEach) {
    parts_ = {{Add("q", {{"weight", q}}, options.dim), 0, 0, options.heads, {0, q}},
              {Add("k", {{"weight", k}}, options.dim), 1, 0, options.kv_heads, {0, k}},
              {Add("v", {{"weight", v}}, options.dim), 2, 0, options.kv_heads, {0, v}}};
  } else if (options.projections == Projections::kThreeOutputs) {
    Linear* qkv = Add("qkv", {{"q", q}, {"k", k}, {"v", v}}, options.dim);
    parts_ = {{qkv, 0, 0, options.heads, {0, q}},
              {qkv, 1, 1, options.kv_heads, {0, k}},
              {qkv, 2, 2, options.kv_heads, {0, v}}};
  } else {
    Linear* qkv = Add("qkv", {{"weight", q + k + v}}, options.dim);
    parts_ = {{qkv, 0, 0, options.heads, {0, q}},
              {qkv, 0, 0, options.kv_heads, {q, k}},
              {qkv, 0, 0, options.kv_heads, {q + k, v}}};
  }
}

Linear* ToyProjections::Add(const std::string& child, const std::vector<Linear::Output>& outputs,
                            int64_t dim) {
  for (const Linear::Output& output : outputs) output_features_.push_back(output.features);
  return modules_.emplace_back(
      AddChild(std::make_unique<Linear>(absl::StrCat(name(), ".", child), dim, outputs, kWeights)));
}

absl::StatusOr<Tensors> ToyProjections::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  Tensors all;
  for (Linear* module : modules_) {
    WEFT_ASSIGN_OR_RETURN(const Tensors outputs, module->Forward(invocation, inputs));
    all.insert(all.end(), outputs.begin(), outputs.end());
  }
  return all;
}

absl::StatusOr<Tensors> ToyProjections::BackwardImpl(Invocation& invocation,
                                                     const Tensors& output_gradients) {
  Tensor dx;
  size_t end = output_gradients.size();
  for (auto module = modules_.rbegin(); module != modules_.rend(); ++module) {
    const size_t outputs = (*module)->parameters().size();
    const Tensors own(output_gradients.begin() + (end - outputs), output_gradients.begin() + end);
    end -= outputs;
    WEFT_ASSIGN_OR_RETURN(const Tensors part, (*module)->Backward(invocation, own));
    if (dx.defined()) {
      AddTo(part[0], dx);
    } else {
      dx = part[0];
    }
  }
  return Tensors{std::move(dx)};
}

ToyBlock::ToyBlock(std::string name, const ToyBlockOptions& options)
    : Module(std::move(name)), options_(options) {
  projections_ =
      AddChild(std::make_unique<ToyProjections>(absl::StrCat(this->name(), ".projections"), options));
  for (const AttentionMask& mask : options.attentions) {
    AttentionOptions attention;
    attention.mask = mask;
    attention.layout = options.layout;
    attention.scale = options.scale;
    attention.returns_lse = options.returns_lse;
    attentions_.push_back(AddChild(std::make_unique<Attention>(
        absl::StrCat(this->name(), ".attention.", attentions_.size()), attention)));
  }
  output_ = AddChild(std::make_unique<Linear>(absl::StrCat(this->name(), ".output"),
                                              options.heads * options.value_dim, options.dim, kWeights));
}

AttentionNeighbors ToyBlock::Neighbors() const {
  AttentionNeighbors neighbors;
  neighbors.heads = options_.heads;
  neighbors.kv_heads = options_.kv_heads;
  ExchangeSource* sources[] = {&neighbors.query, &neighbors.key, &neighbors.value};
  for (size_t i = 0; i < projections_->parts().size(); ++i) {
    const ToyProjections::Part& part = projections_->parts()[i];
    sources[i]->module = part.module;
    if (options_.projections == Projections::kThreeOutputs) sources[i]->output = part.output_of_module;
    if (options_.projections == Projections::kOneOutput) sources[i]->features = part.features;
  }
  neighbors.consumer = output_;
  return neighbors;
}

absl::StatusOr<Tensors> ToyBlock::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  invocation.SetPairMask(options_.pair_mask);
  WEFT_ASSIGN_OR_RETURN(const Tensors projected, projections_->Forward(invocation, inputs));
  Tensors qkv;
  for (const ToyProjections::Part& part : projections_->parts()) {
    const Tensor& output = projected[part.output];
    qkv.push_back(output.Window(HeadsOf(output.view(), part.heads, part.features, options_.layout)));
  }
  if (between_) WEFT_RETURN_IF_ERROR(between_(invocation, qkv));
  Tensor sum;
  for (Attention* attention : attentions_) {
    WEFT_ASSIGN_OR_RETURN(const Tensors outputs, attention->Forward(invocation, qkv));
    const Tensor mixed = outputs[0].Window(AsBshd(outputs[0].view(), options_.layout)).Copy();
    if (sum.defined()) {
      AddTo(mixed, sum);
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
      for (size_t i = 0; i < sums.size(); ++i) AddTo(gradients[i], sums[i]);
    }
  }
  Tensors projected;
  for (const int64_t features : projections_->output_features()) {
    projected.push_back(Tensor::Empty(dout.dtype(), {dout.dim(0), dout.dim(1), features}));
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    const ToyProjections::Part& part = projections_->parts()[i];
    WEFT_RETURN_IF_ERROR(StridedCopy(
        sums[i].view(), HeadsOf(projected[part.output].view(), part.heads, part.features, options_.layout)));
  }
  return projections_->Backward(invocation, std::move(projected));
}

}  // namespace weft::testing
