// Comparison of the collectives, bytes, copies and memory of a training run with the formulas.
#pragma once

#include <gtest/gtest.h>

#include "tests/sharding/support/toy_training.h"

namespace weft::testing {

inline void ExpectCosts(const ToyOutcome& outcome) {
  EXPECT_EQ(outcome.sharding.all_gathers, outcome.expected.all_gathers);
  EXPECT_EQ(outcome.sharding.reduce_scatters, outcome.expected.reduce_scatters);
  EXPECT_EQ(outcome.sharding.all_reduces, outcome.expected.all_reduces);
  EXPECT_EQ(outcome.engine.all_gather_bytes, outcome.expected.all_gather_bytes);
  EXPECT_EQ(outcome.engine.reduce_scatter_bytes, outcome.expected.reduce_scatter_bytes);
  EXPECT_EQ(outcome.engine.all_reduce_bytes, outcome.expected.all_reduce_bytes);
  EXPECT_EQ(outcome.sharding.copied_bytes, outcome.expected.copied_bytes);
  // Slices of an operation that outlasts the step may be packed later.
  if (outcome.expected.packed_bytes > 0) return;
  EXPECT_EQ(outcome.engine.copied_bytes, 0) << "a buffer lay outside node memory";
}

// REQUIRES: as LargestPeaks.
inline void ExpectPeaksWithinBounds(const ToyOutcome& outcome) {
  // Values that ranks sum up, and blocks that are padded to cache lines.
  constexpr size_t kSpare = 2048;
  EXPECT_LE(outcome.peaks.image_bytes, outcome.largest_peaks.image_bytes + kSpare);
  EXPECT_LE(outcome.peaks.gradient_bytes, outcome.largest_peaks.gradient_bytes + kSpare);
  EXPECT_LE(outcome.peaks.shard_bytes, outcome.largest_peaks.shard_bytes + kSpare);
}

}  // namespace weft::testing
