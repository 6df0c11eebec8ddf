#include "weft/nn/rope.h"

#include <cmath>
#include <numbers>

#include "src/nn/modules/sequence_runs.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

float ScaleFrequency(float frequency, const Llama3RopeScaling& scaling) {
  const auto original = static_cast<float>(scaling.original_max_positions);
  const float wavelength = 2.0F * std::numbers::pi_v<float> / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const float unscaled_part = (original / wavelength - scaling.low_freq_factor) /
                              (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0F - unscaled_part) * frequency / scaling.factor + unscaled_part * frequency;
}

// Rotates each pair of one head. `direction` is 1 in forward, and -1 in backward, which rotates by the
// opposite angle.
template <typename T>
void RotatePairs(T* __restrict lower, T* __restrict upper, const float* __restrict cosines,
                 const float* __restrict sines, float direction, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float x = Load(lower[i]);
    const float y = Load(upper[i]);
    const float sine = sines[i] * direction;
    lower[i] = Round<T>(x * cosines[i] - y * sine);
    upper[i] = Round<T>(y * cosines[i] + x * sine);
  }
}

// Rotates all heads of a tensor. `positions` are those of the tokens of one row of the batch.
void RotateTensor(const Tensor& tensor, const std::vector<int64_t>& positions, const RopeTable& table,
                  float direction) {
  const int64_t seq = tensor.dim(1);
  const int64_t heads = tensor.dim(2);
  const int64_t head_dim = tensor.dim(3);
  const int64_t half = table.half_dim();
  WithElementType(tensor.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(tensor.dim(0) * seq, RowGrain(2 * half * heads), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t position = positions[static_cast<size_t>(token % seq)];
        for (int64_t head = 0; head < heads; ++head) {
          T* row = tensor.As<T>() + (token * heads + head) * head_dim;
          RotatePairs(row, row + half, table.cosines(position), table.sines(position), direction, half);
        }
      }
    });
  });
}

}  // namespace

std::vector<float> RopeFrequencies(int64_t head_dim, double theta,
                                   const std::optional<Llama3RopeScaling>& scaling) {
  std::vector<float> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float frequency = 1.0F / std::pow(static_cast<float>(theta), exponent);
    frequencies[i] = scaling.has_value() ? ScaleFrequency(frequency, *scaling) : frequency;
  }
  return frequencies;
}

void RopeTable::Grow(int64_t positions) {
  const auto known = static_cast<int64_t>(cosines_.size()) / half_dim();
  for (int64_t position = known; position < positions; ++position) {
    for (const float frequency : frequencies_) {
      const float angle = static_cast<float>(position) * frequency;
      cosines_.push_back(std::cos(angle));
      sines_.push_back(std::sin(angle));
    }
  }
}

absl::Status Rope::Rotate(const Invocation& invocation, const Tensors& tensors, float direction) const {
  for (const Tensor& tensor : tensors) {
    WEFT_CHECK(tensor.shape().size() == 4 && tensor.dim(3) == head_dim_ && tensor.view().IsContiguous(),
               absl::StrCat(name(), " needs contiguous tensors [batch, tokens, heads, ", head_dim_, "], not ",
                            ToString(tensor.shape())));
    WEFT_ASSIGN_OR_RETURN(const TokenRuns runs, SequenceRuns(invocation, tensor.dim(1), name()));
    table_->Grow(PositionEnd(runs));
    RotateTensor(tensor, Positions(runs), *table_, direction);
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensors> Rope::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  for (const Tensor& input : inputs) WEFT_RETURN_IF_ERROR(invocation.CheckWritable(input, name()));
  WEFT_RETURN_IF_ERROR(Rotate(invocation, inputs, 1.0F));
  return inputs;
}

absl::StatusOr<Tensors> Rope::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(Rotate(invocation, output_gradients, -1.0F));
  return output_gradients;
}

}  // namespace weft
