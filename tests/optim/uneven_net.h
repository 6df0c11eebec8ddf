// Net of two layers for training tests. No rank count divides the sizes of its layers.
#pragma once

#include <absl/status/statusor.h>

#include "weft/core/status.h"
#include "weft/nn/gelu.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"

namespace weft::testing {

constexpr int64_t kRows = 12;  // Rows of a step, over all ranks.

struct Sizes {
  int64_t in, hidden, out;
};
inline constexpr Sizes kSizes[] = {{16, 15, 8}, {7, 15, 3}, {16, 17, 8}};

struct UnevenNet : Sequential {
  explicit UnevenNet(const Sizes& sizes) : Sequential("net") {
    const Initializer initializer{.stddev = 0.3F};
    Add<Linear>("first", sizes.in, sizes.hidden, initializer);
    Add<Gelu>("gelu");
    Add<Linear>("second", sizes.hidden, sizes.out, initializer);
  }
};

// Forward and backward of rows [begin, begin + rows) of a step. The loss of the step is half the sum of y^2
// over all rows, divided by kRows; returns the part of these rows.
inline absl::StatusOr<double> Pass(UnevenNet& net, const Sizes& sizes, int step, int64_t begin,
                                   int64_t rows) {
  const Tensor x = Tensor::Empty(DType::kF32, {rows, sizes.in});
  for (int64_t i = 0; i < x.elements(); ++i) {
    x.As<float>()[i] = static_cast<float>((begin * sizes.in + i + step * 71) * 7919 % 201) / 100.0F - 1.0F;
  }
  Invocation invocation;
  WEFT_ASSIGN_OR_RETURN(const Tensors y, net.Forward(invocation, {x}));
  double loss = 0;
  for (int64_t i = 0; i < y[0].elements(); ++i) {
    float& value = y[0].As<float>()[i];
    loss += 0.5 * value * value / kRows;
    value /= kRows;  // The gradient of the loss.
  }
  WEFT_RETURN_IF_ERROR(net.Backward(invocation, y).status());
  return loss;
}

}  // namespace weft::testing
