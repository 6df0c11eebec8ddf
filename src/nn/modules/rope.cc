#include "weft/nn/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/nn/base/module_checks.h"
#include "src/nn/base/sequence_runs.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

float PairExponent(size_t pair, int64_t head_dim) {
  return static_cast<float>(2 * pair) / static_cast<float>(head_dim);
}

// Frequencies without scaling.
std::vector<float> PlainFrequencies(int64_t head_dim, double theta) {
  std::vector<float> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = 1.0F / std::pow(static_cast<float>(theta), PairExponent(i, head_dim));
  }
  return frequencies;
}

// Inputs of a scaling beside the plain frequencies.
struct ScalingInputs {
  int64_t head_dim;
  double theta;
  RopeLengths lengths;
};

float ScaleFrequency(float frequency, const Llama3RopeScaling& scaling) {
  const auto original = static_cast<float>(scaling.original_max_positions);
  const float wavelength = 2.0F * std::numbers::pi_v<float> / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const float unscaled_part = (original / wavelength - scaling.low_freq_factor) /
                              (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0F - unscaled_part) * frequency / scaling.factor + unscaled_part * frequency;
}

void Scale(const Llama3RopeScaling& scaling, const ScalingInputs& /*inputs*/,
           std::vector<float>& frequencies) {
  for (float& frequency : frequencies) frequency = ScaleFrequency(frequency, scaling);
}

void Scale(const LinearRopeScaling& scaling, const ScalingInputs& /*inputs*/,
           std::vector<float>& frequencies) {
  for (float& frequency : frequencies) frequency /= scaling.factor;
}

void Scale(const DynamicRopeScaling& scaling, const ScalingInputs& inputs, std::vector<float>& frequencies) {
  WEFT_CHECK(inputs.head_dim > 2 && inputs.lengths.max_positions > 0,
             "dynamic rope scaling needs a head_dim above 2, and the model's positions");
  if (inputs.lengths.sequence <= inputs.lengths.max_positions) return;
  const double factor = scaling.factor;
  const double stretch = factor * static_cast<double>(inputs.lengths.sequence) /
                             static_cast<double>(inputs.lengths.max_positions) -
                         (factor - 1.0);
  const auto dim = static_cast<double>(inputs.head_dim);
  frequencies = PlainFrequencies(inputs.head_dim, inputs.theta * std::pow(stretch, dim / (dim - 2.0)));
}

void Scale(const YarnRopeScaling& scaling, const ScalingInputs& inputs, std::vector<float>& frequencies) {
  const auto dim = static_cast<double>(inputs.head_dim);
  // The pair whose wavelength fits `rotations` times into the original positions.
  const auto pair_of = [&](double rotations) {
    const double wavelength = static_cast<double>(scaling.original_max_positions) / rotations;
    return dim * std::log(wavelength / (2.0 * std::numbers::pi)) / (2.0 * std::log(inputs.theta));
  };
  double low = pair_of(scaling.beta_fast);
  double high = pair_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;  // As transformers, against a division by zero.
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = (static_cast<double>(i) - low) / (high - low);
    const auto scaled_part = static_cast<float>(std::clamp(ramp, 0.0, 1.0));
    frequencies[i] = frequencies[i] / scaling.factor * scaled_part + frequencies[i] * (1.0F - scaled_part);
  }
}

void Scale(const LongRopeScaling& scaling, const ScalingInputs& inputs, std::vector<float>& frequencies) {
  const bool is_long = inputs.lengths.sequence > scaling.original_max_positions;
  const std::vector<float>& factors = is_long ? scaling.long_factors : scaling.short_factors;
  WEFT_CHECK(factors.size() == frequencies.size(), "longrope scaling needs a factor for each frequency");
  for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
}

// Rotates each pair of one head. `direction` is 1 in forward, and -1 in backward, which rotates by the
// opposite angle. A factor of the table applies in both.
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

std::vector<float> RopeFrequencies(int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling,
                                   const RopeLengths& lengths) {
  std::vector<float> frequencies = PlainFrequencies(head_dim, theta);
  if (scaling.has_value()) {
    std::visit([&](const auto& kind) { Scale(kind, {head_dim, theta, lengths}, frequencies); }, *scaling);
  }
  return frequencies;
}

float RopeAttentionFactor(const std::optional<RopeScaling>& scaling) {
  if (!scaling.has_value()) return 1.0F;
  if (const auto* yarn = std::get_if<YarnRopeScaling>(&*scaling)) return yarn->attention_factor;
  if (const auto* longrope = std::get_if<LongRopeScaling>(&*scaling)) return longrope->attention_factor;
  return 1.0F;
}

void RopeTable::Grow(int64_t positions) {
  const auto known = static_cast<int64_t>(cosines_.size()) / half_dim();
  for (int64_t position = known; position < positions; ++position) {
    for (const float frequency : frequencies_) {
      const float angle = static_cast<float>(position) * frequency;
      cosines_.push_back(std::cos(angle) * factor_);
      sines_.push_back(std::sin(angle) * factor_);
    }
  }
}

absl::Status Rope::Rotate(const Invocation& invocation, const Tensors& tensors, float direction) const {
  std::vector<TokenRuns> runs;  // Of each tensor. All are checked before one is rotated in place.
  for (const Tensor& tensor : tensors) {
    WEFT_RETURN_IF_ERROR(CheckActivation(*this, tensor));
    if (tensor.shape().size() != 4 || tensor.dim(3) != head_dim_) {
      return absl::InvalidArgumentError(
          absl::StrCat(name(), ": input has the shape ", ToString(tensor.shape()),
                       ", the module takes [batch, tokens, heads, ", head_dim_, "]"));
    }
    WEFT_ASSIGN_OR_RETURN(runs.emplace_back(), SequenceRuns(invocation, tensor.dim(1), name()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    table_->Grow(PositionEnd(runs[i]));
    RotateTensor(tensors[i], Positions(runs[i]), *table_, direction);
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensors> Rope::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, inputs.size()));
  for (const Tensor& input : inputs) WEFT_RETURN_IF_ERROR(invocation.CheckWritable(input, name()));
  WEFT_RETURN_IF_ERROR(Rotate(invocation, inputs, 1.0F));
  return inputs;
}

absl::StatusOr<Tensors> Rope::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckContiguousGradients(*this, output_gradients, output_gradients.size()));
  Tensors gradients;
  for (const Tensor& gradient : output_gradients) gradients.push_back(invocation.WritableOrCopy(gradient));
  WEFT_RETURN_IF_ERROR(Rotate(invocation, gradients, -1.0F));
  return gradients;
}

}  // namespace weft
