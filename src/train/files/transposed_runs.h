// Elements of a weight in the order of a file that stores the weight transposed.
#pragma once

#include <cstdint>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include "weft/core/status.h"

namespace weft {

// Elements of a file that follow each other. Element i is number `from + i * stride` of the range.
struct TransposedRun {
  int64_t first;  // Index of the first element in the file's tensor.
  int64_t count;
  int64_t from;
  int64_t stride;
};

// Calls body(run) for each run of the elements [start, start + count) of a weight [rows, columns], row-major,
// which a file stores as [columns, rows]. Stops at the first error.
inline absl::Status ForEachTransposedRun(int64_t rows, int64_t columns, int64_t start, int64_t count,
                                         absl::FunctionRef<absl::Status(const TransposedRun& run)> body) {
  for (int64_t column = 0; column < columns; ++column) {
    // The rows whose element of this column lies in the range.
    const int64_t first_row = (start - column + columns - 1) / columns;
    const int64_t end_row = (start + count - column + columns - 1) / columns;
    if (first_row >= end_row) continue;
    WEFT_RETURN_IF_ERROR(body(
        {column * rows + first_row, end_row - first_row, first_row * columns + column - start, columns}));
  }
  return absl::OkStatus();
}

}  // namespace weft
