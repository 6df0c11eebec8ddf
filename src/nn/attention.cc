#include "weft/nn/attention.h"

#include "src/nn/attention_kernel.h"

namespace weft {
namespace {

AttentionSizes SizesOf(const Tensor& q, const Tensor& k) {
  return {q.dim(0), q.dim(1), q.dim(2), k.dim(2), q.dim(3)};
}

}  // namespace

absl::StatusOr<Tensors> CausalAttention::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  const Tensor& q = inputs[0];
  const Tensor& k = inputs[1];
  const Tensor& v = inputs[2];
  WEFT_CHECK(
      q.shape().size() == 4 && k.shape().size() == 4 && k.shape() == v.shape() && q.dim(0) == k.dim(0) &&
          q.dim(1) == k.dim(1) && q.dim(3) == k.dim(3) && k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0,
      absl::StrCat(name(),
                   " takes q [batch, seq, heads, head_dim] with k and v of as many or a divisor of the "
                   "heads, not ",
                   ToString(q.shape()), ", ", ToString(k.shape()), ", ", ToString(v.shape())));
  Tensor out = Tensor::Empty(q.dtype(), q.shape());
  const Tensor lse = Tensor::Empty(DType::kF32, {q.dim(0), q.dim(2), q.dim(1)});
  AttentionForward(SizesOf(q, k), q, k, v, out, lse);
  if (invocation.saves()) invocation.Save(this, {q, k, v, out, lse});
  return Tensors{std::move(out)};
}

absl::StatusOr<Tensors> CausalAttention::BackwardImpl(Invocation& invocation,
                                                      const Tensors& output_gradients) {
  const Tensors saved = invocation.TakeSaved(this);
  AttentionGradients gradients = AttentionBackward(SizesOf(saved[0], saved[1]), saved[0], saved[1], saved[2],
                                                   saved[3], saved[4], output_gradients[0]);
  return Tensors{std::move(gradients.dq), std::move(gradients.dk), std::move(gradients.dv)};
}

}  // namespace weft
