// Choice of the rank that orthogonalizes each matrix, and the order in which matrices are taken.
//
// Pure: every rank makes the same choice from the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/types/span.h>

namespace weft {

struct MatrixWork {
  double operations;
  std::vector<int64_t> held;  // Elements of the matrix that each rank holds.
};

struct MatrixTurn {
  size_t matrix;
  int owner;
};

// Returns a turn for each matrix, those with most operations first. Each matrix goes to the rank with the
// least work so far (the longest-processing-time rule). Elements that a matrix's owner does not hold must be
// sent to it. All owners together receive at most (ranks - 1) / ranks of the elements: a rank that would
// exceed this is passed over. If none is passed over, the busiest rank has at most 4/3 of the best possible
// load.
// REQUIRES: each `held` has one count for each rank.
std::vector<MatrixTurn> AssignMatrices(absl::Span<const MatrixWork> matrices, int ranks);

}  // namespace weft
