// Cross-entropy of a softmax, fused with its gradient, one row of logits at a time.
#pragma once

#include <cstdint>

namespace weft {

// -log softmax(logits)[target]. In fp32, stable for any finite logits.
float CrossEntropyRow(const float* logits, int64_t vocab_size, int32_t target);

// The same; the logits become the gradient of the loss times `scale`: (softmax - onehot(target)) scale.
float CrossEntropyRowWithGradient(float* logits, int64_t vocab_size, int32_t target, float scale);

}  // namespace weft
