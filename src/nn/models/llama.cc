#include "weft/nn/llama.h"

#include <utility>

#include "src/nn/base/module_checks.h"
#include "src/nn/base/sequence_runs.h"

namespace weft {
namespace {

// [batch, tokens, dim] to [batch, dim].
Tensor LastToken(const Tensor& hidden) {
  const Tensor last = hidden.Window(hidden.view().Slice(1, hidden.dim(1) - 1, 1)).Copy();
  return last.Reshape({last.dim(0), last.dim(2)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<LlamaModel>> LlamaModel::Create(const LlamaConfig& config) {
  WEFT_RETURN_IF_ERROR(Validate(config));
  return std::unique_ptr<LlamaModel>(new LlamaModel(config));
}

LlamaModel::LlamaModel(const LlamaConfig& config) : Module(""), config_(config) {
  const Initializer initializer = {Initializer::Kind::kNormal, 0.0F, config.init_stddev};
  const RopeTables tables(config);
  embedding_ = AddChild(std::make_unique<Embedding>("model.embed_tokens", config.vocab_size, config.dim,
                                                    initializer, config.traits.embedding_scale));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    blocks_.push_back(AddChild(
        std::make_unique<DecoderBlock>(absl::StrCat("model.layers.", layer), config, layer, tables)));
  }
  norm_ = AddChild(
      std::make_unique<RmsNorm>("model.norm", config.dim, config.norm_eps, config.traits.norm_offset));
  head_ = AddChild(config.tie_word_embeddings
                       ? std::make_unique<LmHeadLoss>("lm_head", embedding_->parameters()[0])
                       : std::make_unique<LmHeadLoss>("lm_head", config.vocab_size, config.dim, initializer));
}

std::vector<Module*> LlamaModel::units() const {
  std::vector<Module*> units(blocks_.begin(), blocks_.end());
  if (!config_.tie_word_embeddings) units.push_back(head_);
  return units;
}

absl::StatusOr<Tensors> LlamaModel::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, inputs.size() == 1 ? 1 : 2));
  const Tensor& ids = inputs[0];
  const Tensor* targets = inputs.size() > 1 ? &inputs[1] : nullptr;
  if (targets == nullptr && (ids.shape().size() != 2 || ids.dim(1) == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("token ids must be [batch, seq] with at least one token, not ", ToString(ids.shape())));
  }
  if (targets != nullptr && (ids.shape().size() != 2 || ids.shape() != targets->shape())) {
    return absl::InvalidArgumentError(absl::StrCat("token ids and targets must both be [batch, seq], not ",
                                                   ToString(ids.shape()), " and ",
                                                   ToString(targets->shape())));
  }
  WEFT_ASSIGN_OR_RETURN(const TokenRuns runs, SequenceRuns(invocation, ids.dim(1), "the model"));
  if (const int64_t positions = PositionEnd(runs); positions > config_.PositionLimit()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sequence of ", positions, " tokens is longer than the model's ",
                     config_.PositionLimit(), " positions; use a shorter sequence"));
  }
  WEFT_ASSIGN_OR_RETURN(Tensors hidden, embedding_->Forward(invocation, {ids}));
  for (DecoderBlock* block : blocks_) {
    WEFT_ASSIGN_OR_RETURN(hidden, block->Forward(invocation, std::move(hidden)));
  }
  if (targets == nullptr) hidden = {LastToken(hidden[0])};
  WEFT_ASSIGN_OR_RETURN(hidden, norm_->Forward(invocation, std::move(hidden)));
  return targets == nullptr ? head_->Forward(invocation, std::move(hidden))
                            : head_->Forward(invocation, {hidden[0], *targets});
}

absl::StatusOr<Tensors> LlamaModel::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_ASSIGN_OR_RETURN(Tensors gradients, head_->Backward(invocation, output_gradients));
  WEFT_ASSIGN_OR_RETURN(gradients, norm_->Backward(invocation, {gradients[0]}));
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    WEFT_ASSIGN_OR_RETURN(gradients, (*block)->Backward(invocation, std::move(gradients)));
  }
  WEFT_RETURN_IF_ERROR(embedding_->Backward(invocation, std::move(gradients)).status());
  return Tensors{Tensor(), Tensor()};
}

}  // namespace weft
