#include "src/nn/base/gradient_sum.h"

#include <algorithm>

#include "src/nn/base/shapes.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"
#include "weft/core/tensor.h"

namespace weft {

void StoreGradient(const TensorView& gradient, int64_t offset, const float* sum, float beta, int64_t count) {
  WithElementType(gradient.dtype, [&](auto element) {
    using T = decltype(element);
    StoreSumRun(sum, beta, count, gradient.As<T>() + offset);
  });
}

void SumOverTokens(int64_t tokens, int64_t tokens_per_part, Parameter& parameter,
                   absl::FunctionRef<void(int64_t begin, int64_t end, float* sum)> add) {
  const int64_t elements = parameter.elements();
  const int64_t parts = std::max<int64_t>(1, (tokens + tokens_per_part - 1) / tokens_per_part);
  const Tensor partial = Tensor::Zeros(DType::kF32, {parts, elements});
  auto* sums = partial.As<float>();
  ParallelFor(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      add(part * tokens_per_part, std::min(tokens, (part + 1) * tokens_per_part), sums + part * elements);
    }
  });
  ParallelFor(elements, RowGrain(parts), [&](int64_t begin, int64_t end) {
    for (int64_t part = 1; part < parts; ++part) {
      for (int64_t i = begin; i < end; ++i) sums[i] += sums[part * elements + i];
    }
  });
  StoreGradient(WritableGradient(parameter), 0, sums, parameter.BeginGradWrite(), elements);
}

}  // namespace weft
