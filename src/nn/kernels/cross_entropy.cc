#include "src/nn/kernels/cross_entropy.h"

#include <cmath>
#include <limits>

#include "src/nn/kernels/vector_math.h"

namespace weft {
namespace {

float Maximum(const float* logits, int64_t vocab_size) {
  return LaneMax(vocab_size, -std::numeric_limits<float>::infinity(),
                 [logits](int64_t i) { return logits[i]; });
}

}  // namespace

float CrossEntropyRow(const float* logits, int64_t vocab_size, int32_t target) {
  const float maximum = Maximum(logits, vocab_size);
  const float sum = LaneSum(vocab_size, [=](int64_t i) { return Exp(logits[i] - maximum); });
  return std::log(sum) - (logits[target] - maximum);
}

float CrossEntropyRowWithGradient(float* logits, int64_t vocab_size, int32_t target, float scale) {
  const float maximum = Maximum(logits, vocab_size);
  const float target_logit = logits[target] - maximum;
  for (int64_t i = 0; i < vocab_size; ++i) logits[i] = Exp(logits[i] - maximum);
  const float sum = LaneSum(vocab_size, [logits](int64_t i) { return logits[i]; });
  const float factor = scale / sum;
  for (int64_t i = 0; i < vocab_size; ++i) logits[i] *= factor;
  logits[target] -= scale;
  return std::log(sum) - target_logit;
}

}  // namespace weft
