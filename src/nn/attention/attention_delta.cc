#include "src/nn/attention/head_rows.h"
#include "src/nn/kernels/vector_math.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"
#include "weft/nn/attention_kernel.h"

namespace weft {

void AttentionDelta(const TensorView& out, const TensorView& dout, const TensorView& delta) {
  const int64_t heads = out.shape[2];
  const int64_t tokens = out.shape[1];
  const int64_t dim = out.shape[3];
  WithElementType(out.dtype, [&](auto out_element) {
    WithElementType(dout.dtype, [&](auto dout_element) {
      ParallelFor(out.shape[0] * heads, RowGrain(tokens * dim), [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const auto values = HeadOf<decltype(out_element)>(out, item / heads, item % heads);
          const auto gradients = HeadOf<decltype(dout_element)>(dout, item / heads, item % heads);
          float* target = StatisticsOf(delta, item / heads, item % heads);
          for (int64_t token = 0; token < tokens; ++token) {
            target[token] = LaneSum(dim, [a = values.Row(token), b = gradients.Row(token)](int64_t i) {
              return Load(a[i]) * Load(b[i]);
            });
          }
        }
      });
    });
  });
}

}  // namespace weft
