#include "weft/nn/lm_head_loss.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "src/nn/base/module_checks.h"
#include "src/nn/base/shapes.h"
#include "src/nn/kernels/cross_entropy.h"
#include "src/nn/kernels/token_ids.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"
#include "weft/core/strided_copy.h"
#include "weft/nn/matmul.h"

namespace weft {
namespace {

// Note [Kept gradients of f16]
// Problem: forward does not know the gradient of the loss, which is large in f16 (see LossScaler). Divided by
// the number of targets alone, most gradients of logits would be too small for f16.
// Rule: in f16 the kept gradients have the factor 2^15 in place of the invocation's loss scale. Backward
// multiplies by the gradient of the loss, by the loss scale and by 2^-15.
// Why it suffices: gradients of logits are at most 1, so kept ones are below 65504, the largest number of
// f16. Those of at least 2^-29 keep all bits.
// Without it: probabilities below 6e-8 times the number of targets have no gradient.
constexpr float kKeptScale = 0x1p15F;

float KeptScale(DType dtype, const Invocation& invocation) {
  return dtype == DType::kF16 ? kKeptScale : invocation.loss_scale();
}
// Factor from a kept gradient to that of the logits.
float KeptToGradient(DType dtype, const Invocation& invocation, float loss_gradient) {
  return dtype == DType::kF16 ? loss_gradient * invocation.loss_scale() / kKeptScale : loss_gradient;
}

// Writes the losses of tokens [begin, end) of a chunk with fp32 logits [tokens, vocab_size]. With `gradient`,
// also overwrites the logits with their gradient, and rounds it into `gradient` unless that is the same
// memory. Ignored targets have the loss 0 and the gradient 0.
void ComputeRowLosses(float* logits, int64_t vocab_size, const int32_t* targets, float scale, int64_t begin,
                      int64_t end, const TensorView* gradient, float* losses) {
  for (int64_t row = begin; row < end; ++row) {
    float* row_logits = logits + row * vocab_size;
    const bool is_ignored = targets[row] == kIgnoredTarget;
    if (gradient == nullptr) {
      losses[row] = is_ignored ? 0.0F : CrossEntropyRow(row_logits, vocab_size, targets[row]);
      continue;
    }
    if (is_ignored) {
      losses[row] = 0;
      std::fill_n(row_logits, vocab_size, 0.0F);
    } else {
      losses[row] = CrossEntropyRowWithGradient(row_logits, vocab_size, targets[row], scale);
    }
    const TensorView target_row = gradient->Slice(0, row, 1);
    if (target_row.data != row_logits) {
      ConvertRun(row_logits, DType::kF32, target_row.data, target_row.dtype, vocab_size);
    }
  }
}

}  // namespace

// A chunk is large enough for the product to run at full speed, and small enough for the logits of most
// vocabularies to be still in cache when the softmax reads them.
int64_t LogitsChunkTokens(int64_t tokens, int64_t vocab_size) {
  constexpr int64_t kChunkElements = int64_t{1024} * 1024;
  constexpr int64_t kFewestTokens = 128;
  return std::min(tokens, std::max(kFewestTokens, kChunkElements / vocab_size));
}

int64_t LogitsScratchBytes(int64_t tokens, int64_t vocab_size, DType dtype) {
  if (dtype == DType::kF32) return 0;
  return LogitsChunkTokens(tokens, vocab_size) * vocab_size * static_cast<int64_t>(sizeof(float));
}

LmHeadLoss::LmHeadLoss(std::string name, int64_t vocab_size, int64_t dim, Initializer initializer)
    : Module(std::move(name)) {
  AddParameter("weight", {vocab_size, dim}, initializer);
}

LmHeadLoss::LmHeadLoss(std::string name, std::shared_ptr<Parameter> tied) : Module(std::move(name)) {
  ShareParameter(std::move(tied));
}

absl::StatusOr<Tensors> LmHeadLoss::ComputeLogits(const Invocation& invocation, const Tensor& hidden) const {
  if (invocation.gradients()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(),
                     ": logits have no backward; pass targets, or create the invocation without "
                     "gradients"));
  }
  Shape shape = hidden.shape();
  shape.back() = vocab_size();
  Tensor logits = Tensor::Empty(DType::kF32, std::move(shape));
  const TensorView& weight = UnshardedData(*parameters()[0], hidden.dtype());
  Matmul(Rows(hidden), vocab_size(), dim(), hidden.dtype(), {hidden.view().data, dim()},
         {weight.data, dim(), true}, 0.0F, DType::kF32, logits.view().data, vocab_size());
  return Tensors{std::move(logits)};
}

absl::StatusOr<Tensors> LmHeadLoss::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckForward(*this, inputs, dim()));
  const Tensor& hidden = inputs[0];
  if (inputs.size() == 1) return ComputeLogits(invocation, hidden);
  const Tensor& targets = inputs[1];
  if (inputs.size() > 2 || targets.elements() != Rows(hidden)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": ", inputs.size() - 1, " tensors of targets, of ", ToString(targets.shape()),
                     ", for hidden states ", ToString(hidden.shape()), "; pass one target per token"));
  }
  WEFT_RETURN_IF_ERROR(
      CheckTokenIds(targets, vocab_size(), absl::StrCat("targets of ", name()), kIgnoredTarget));
  const int64_t tokens = targets.elements();
  const int64_t chunk = LogitsChunkTokens(tokens, vocab_size());
  const TensorView& weight = UnshardedData(*parameters()[0], hidden.dtype());

  const bool keep = invocation.is_saving();
  const bool in_place = keep && hidden.dtype() == DType::kF32;
  const Tensor gradients = keep ? Tensor::Empty(hidden.dtype(), {tokens, vocab_size()}) : Tensor();
  const Tensor chunk_logits = in_place ? Tensor() : Tensor::Empty(DType::kF32, {chunk, vocab_size()});
  std::vector<float> losses(static_cast<size_t>(tokens));
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t rows = std::min(chunk, tokens - first);
    TensorView gradient;
    if (keep) gradient = gradients.view().Slice(0, first, rows);
    auto* logits = in_place ? gradient.As<float>() : chunk_logits.As<float>();
    Matmul(rows, vocab_size(), dim(), hidden.dtype(),
           {static_cast<const char*>(hidden.view().data) + BytesOf(first * dim(), hidden.dtype()), dim()},
           {weight.data, dim(), true}, 0.0F, DType::kF32, logits, vocab_size());
    ParallelFor(rows, RowGrain(vocab_size()), [&](int64_t begin, int64_t end) {
      ComputeRowLosses(logits, vocab_size(), targets.As<int32_t>() + first,
                       KeptScale(hidden.dtype(), invocation), begin, end, keep ? &gradient : nullptr,
                       losses.data() + first);
    });
  }
  if (keep) invocation.Save(this, {hidden, gradients});
  const double loss = std::accumulate(losses.begin(), losses.end(), 0.0) * invocation.loss_scale();
  return Tensors{Tensor::Scalar(static_cast<float>(loss))};
}

absl::StatusOr<Tensors> LmHeadLoss::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  const DType dtype = invocation.LastSaved(this)[0].dtype();
  WEFT_RETURN_IF_ERROR(CheckBackward(*this, output_gradients, 1, dtype));
  const Tensors saved = invocation.PopSaved(this);
  const Tensor& hidden = saved[0];
  const Tensor& logit_gradients = saved[1];
  const float factor = KeptToGradient(hidden.dtype(), invocation, *output_gradients[0].As<float>());
  if (factor != 1.0F) {
    void* data = logit_gradients.view().data;
    ConvertRun(data, hidden.dtype(), data, hidden.dtype(), logit_gradients.elements(), factor);
  }
  const int64_t tokens = Rows(hidden);
  Parameter& parameter = *parameters()[0];
  const TensorView& weight = UnshardedData(parameter, hidden.dtype());
  Tensor dhidden = Tensor::Empty(hidden.dtype(), hidden.shape());
  Matmul(tokens, dim(), vocab_size(), hidden.dtype(), {logit_gradients.view().data, vocab_size()},
         {weight.data, dim()}, 0.0F, dhidden.dtype(), dhidden.view().data, dim());
  if (parameter.requires_grad) {
    const TensorView& gradient = WritableGradient(parameter);
    Matmul(vocab_size(), dim(), tokens, hidden.dtype(), {logit_gradients.view().data, vocab_size(), true},
           {hidden.view().data, dim()}, parameter.BeginGradWrite(), gradient.dtype, gradient.data, dim());
  }
  return Tensors{std::move(dhidden), Tensor()};
}

absl::StatusOr<Tensors> LanguageModel::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, inputs.size() == 1 ? 1 : 2));
  WEFT_ASSIGN_OR_RETURN(Tensors hidden, body_->Forward(invocation, {inputs[0]}));
  if (inputs.size() == 2) hidden.push_back(inputs[1]);
  return head_->Forward(invocation, std::move(hidden));
}

absl::StatusOr<Tensors> LanguageModel::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_ASSIGN_OR_RETURN(const Tensors hidden, head_->Backward(invocation, output_gradients));
  WEFT_RETURN_IF_ERROR(body_->Backward(invocation, {hidden[0]}).status());
  return Tensors{Tensor(), Tensor()};
}

}  // namespace weft
