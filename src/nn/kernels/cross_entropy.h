// Cross-entropy of a softmax for one row of logits [vocab_size], alone or fused with its gradient. In fp32.
#pragma once

#include <cstdint>

namespace weft {

// Returns -log softmax(logits)[target]. Does not overflow for any finite logits.
float CrossEntropyRow(const float* logits, int64_t vocab_size, int32_t target);

// Returns the same, and overwrites the logits with the gradient of the loss times `scale`:
// (softmax(logits) - onehot(target)) * scale.
float CrossEntropyRowWithGradient(float* logits, int64_t vocab_size, int32_t target, float scale);

}  // namespace weft
