#include "src/train/planner/timed_block.h"

#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

// A layer that writes nothing into its results.
class TimedLayer final : public Module {
 public:
  TimedLayer(std::string name, DType dtype, std::vector<Shape> outputs, const PartTimes& times,
             const PassTime& pass_time)
      : Module(std::move(name)),
        dtype_(dtype),
        outputs_(std::move(outputs)),
        times_(times),
        pass_time_(pass_time) {}

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override {
    pass_time_(times_.forward_ns);
    invocation.Save(this, inputs);
    return Make(outputs_, &TimedLayer::NewOutput);
  }
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& /*gradients*/) override {
    pass_time_(times_.backward_ns);
    std::vector<Shape> shapes;
    for (const Tensor& input : invocation.PopSaved(this)) shapes.push_back(input.shape());
    return Make(shapes, &TimedLayer::NewInputGradient);
  }

 private:
  absl::StatusOr<Tensors> Make(const std::vector<Shape>& shapes,
                               absl::StatusOr<Tensor> (Module::*make)(DType, Shape) const) {
    Tensors results;
    for (const Shape& shape : shapes) {
      WEFT_ASSIGN_OR_RETURN(results.emplace_back(), (this->*make)(dtype_, shape));
    }
    return results;
  }

  const DType dtype_;
  const std::vector<Shape> outputs_;
  const PartTimes times_;
  const PassTime pass_time_;
};

// Returns its inputs, as the rotary embedding does.
class InPlaceLayer final : public Module {
 public:
  using Module::Module;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& /*invocation*/, const Tensors& inputs) override {
    return inputs;
  }
  absl::StatusOr<Tensors> BackwardImpl(Invocation& /*invocation*/, const Tensors& gradients) override {
    return gradients;
  }
};

PartTimes Times(double factor, const PartTimes& times) {
  return {factor * times.forward_ns, factor * times.backward_ns};
}

double PairsOfAllHeads(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                       absl::Span<const KeyBlock> keys) {
  int64_t pairs = 0;
  for (const KeyBlock& block : keys) pairs += VisiblePairs(problem.mask, q_runs, *block.runs);
  return static_cast<double>(pairs * q.shape[0] * q.shape[2]);
}

}  // namespace

BlockTimes SplitTimes(const PartTimes& whole, const PartShape& shape, const PartShape& pairs, double share) {
  const double forward = ForwardOperations(ModelPart::kBlock, shape);
  const double backward = BackwardOperations(ModelPart::kBlock, shape);
  // Frozen projections have no products for the gradients of their weights.
  const double products = shape.adapter_elements == 0 ? 2 : 1;
  const PartTimes attention = {AttentionOperations(shape) / forward * whole.forward_ns,
                               2 * AttentionOperations(shape) / backward * whole.backward_ns};
  const PartTimes projections = {ProjectionOperations(shape) / forward * whole.forward_ns,
                                 products * ProjectionOperations(shape) / backward * whole.backward_ns};
  const PartTimes rest = {whole.forward_ns - attention.forward_ns - projections.forward_ns,
                          whole.backward_ns - attention.backward_ns - projections.backward_ns};
  const AttentionMask mask{true, pairs.window == 0 ? std::nullopt : std::optional(pairs.window - 1)};
  const TokenRun all_tokens{.count = pairs.seq_len};
  const auto count =
      static_cast<double>(pairs.sequences * pairs.heads * VisiblePairs(mask, all_tokens, all_tokens));
  return {.projections = Times(share, projections),
          .rest = Times(share, rest),
          .attention_pair = Times(1 / count, attention)};
}

AttentionKernels TimedKernels(const PartTimes& of_pair, const PassTime& pass_time) {
  AttentionKernels kernels;
  kernels.forward = [=](const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                        absl::Span<const KeyBlock> keys, const TensorView&, const TensorView&) {
    pass_time(PairsOfAllHeads(problem, q, q_runs, keys) * of_pair.forward_ns);
  };
  kernels.backward = [=](const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                         absl::Span<const KeyBlock> keys, const AttentionBackwardInputs&,
                         const AttentionGradients&) {
    pass_time(PairsOfAllHeads(problem, q, q_runs, keys) * of_pair.backward_ns);
  };
  return kernels;
}

TimedBlock::TimedBlock(const LlamaConfig& model, int64_t layer, Shape tokens, DType dtype,
                       const BlockTimes& times, const PassTime& pass_time)
    : Module(absl::StrCat("model.layers.", layer)), heads_(model.heads), kv_heads_(model.kv_heads) {
  const auto shape_of = [&](int64_t heads) { return Shape{tokens[0], tokens[1], heads, model.head_dim}; };
  const auto add = [&](const char* part, std::vector<Shape> outputs, const PartTimes& part_times) {
    return AddChild(std::make_unique<TimedLayer>(absl::StrCat(name(), ".", part), dtype, std::move(outputs),
                                                 part_times, pass_time));
  };
  const Shape queries = shape_of(heads_);
  const Shape keys = shape_of(kv_heads_);
  projections_ = add("projections", {queries, keys, keys}, times.projections);
  if (model.traits.qk_norm) {
    query_norm_ = add("q_norm", {queries}, {});
    key_norm_ = add("k_norm", {keys}, {});
  }
  rope_ = AddChild(std::make_unique<InPlaceLayer>(absl::StrCat(name(), ".rope")));
  attention_ = AddChild(std::make_unique<Attention>(absl::StrCat(name(), ".attention"),
                                                    AttentionOptions{.mask = model.MaskOf(layer)}));
  rest_ = add("rest", {{1}}, times.rest);
}

absl::Status TimedBlock::Split(ContextParallel& context) {
  AttentionNeighbors neighbors;
  neighbors.heads = heads_;
  neighbors.kv_heads = kv_heads_;
  neighbors.query = {rope_, 0, {}};
  neighbors.key = {rope_, 1, {}};
  neighbors.value = {projections_, 2, {}};
  if (query_norm_ != nullptr) neighbors.allocators = {query_norm_, key_norm_};
  neighbors.consumer = rest_;
  return context.Parallelize(*attention_, neighbors);
}

absl::StatusOr<Tensors> TimedBlock::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_ASSIGN_OR_RETURN(const Tensors projected, projections_->Forward(invocation, inputs));
  Tensors rotated = {projected[0], projected[1]};
  if (query_norm_ != nullptr) {
    WEFT_ASSIGN_OR_RETURN(const Tensors q, query_norm_->Forward(invocation, {projected[0]}));
    WEFT_ASSIGN_OR_RETURN(const Tensors k, key_norm_->Forward(invocation, {projected[1]}));
    rotated = {q[0], k[0]};
  }
  WEFT_ASSIGN_OR_RETURN(rotated, rope_->Forward(invocation, std::move(rotated)));
  WEFT_ASSIGN_OR_RETURN(const Tensors mixed,
                        attention_->Forward(invocation, {rotated[0], rotated[1], projected[2]}));
  return rest_->Forward(invocation, mixed);
}

absl::StatusOr<Tensors> TimedBlock::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_ASSIGN_OR_RETURN(const Tensors mixed, rest_->Backward(invocation, output_gradients));
  WEFT_ASSIGN_OR_RETURN(const Tensors qkv, attention_->Backward(invocation, mixed));
  WEFT_ASSIGN_OR_RETURN(Tensors rotated, rope_->Backward(invocation, {qkv[0], qkv[1]}));
  if (query_norm_ != nullptr) {
    WEFT_ASSIGN_OR_RETURN(const Tensors k, key_norm_->Backward(invocation, {rotated[1]}));
    WEFT_ASSIGN_OR_RETURN(const Tensors q, query_norm_->Backward(invocation, {rotated[0]}));
    rotated = {q[0], k[0]};
  }
  return projections_->Backward(invocation, {rotated[0], rotated[1], qkv[2]});
}

}  // namespace weft
