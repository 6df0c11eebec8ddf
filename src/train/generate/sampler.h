// Choice of the next token from logits.
#pragma once

#include <cstdint>
#include <random>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/train/generate.h"

namespace weft {

// Thread safety: none.
class Sampler {
 public:
  // REQUIRES: the options have passed Validate.
  explicit Sampler(const SamplingOptions& options) : options_(options), random_(options.seed.value_or(0)) {}

  // Returns the index of the chosen logit. Of equal logits the first counts as the larger.
  // Errors: kOutOfRange (a logit is infinite or NaN).
  absl::StatusOr<int32_t> Next(absl::Span<const float> logits);

 private:
  const SamplingOptions options_;
  std::mt19937_64 random_;
};

}  // namespace weft
