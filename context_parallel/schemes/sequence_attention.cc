#include "context_parallel/schemes/sequence_attention.h"

#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/memory/pool_tensor.h"

namespace weft {

OpOptions SequenceCall::Options(std::string_view what) const {
  return {.priority = Priority::kCritical,
          .identity = HashCombine(identity, Hash64(what)),
          .label = absl::StrCat(label, ".", ToAbsl(what))};
}

absl::StatusOr<Tensor> NewOutput(BufferPool& pool, const Tensor& q, const Tensor& v, DType dtype) {
  return PoolTensor(pool, dtype, {q.dim(0), q.dim(1), q.dim(2), v.dim(3)});
}

absl::StatusOr<Tensor> NewLse(BufferPool& pool, const Tensor& q) {
  return PoolTensor(pool, DType::kF32, {q.dim(0), q.dim(2), q.dim(1)});
}

Tensor ComputeDelta(const Tensor& out, const Tensor& dout) {
  Tensor delta = Tensor::Empty(DType::kF32, {out.dim(0), out.dim(2), out.dim(1)});
  AttentionDelta(out.view(), dout.view(), delta.view());
  return delta;
}

absl::StatusOr<SequenceAttention::Result> MakeResult(BufferPool& pool, const SequenceCall& call,
                                                     const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const Tensor& out, const Tensor& lse) {
  WEFT_ASSIGN_OR_RETURN(const Tensor converted, ConvertTo(pool, out, q.dtype()));
  SequenceAttention::Result result{.out = converted, .lse = lse};
  if (call.saves) result.saved = {q, k, v, converted, lse};
  return result;
}

absl::StatusOr<Tensor> ConvertTo(BufferPool& pool, const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  WEFT_ASSIGN_OR_RETURN(Tensor converted, PoolTensor(pool, dtype, tensor.shape()));
  WEFT_RETURN_IF_ERROR(StridedCopy(tensor.view(), converted.view()));
  return converted;
}

}  // namespace weft
