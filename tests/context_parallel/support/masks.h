// Masks of attention that many tests take.
#pragma once

#include "weft/nn/attention_mask.h"

namespace weft::testing {

inline constexpr AttentionMask kCausal{};
inline constexpr AttentionMask kFull{.causal = false, .keys_before = {}};

}  // namespace weft::testing
