// Products of a few rows (the query heads of a group, or the index heads) with the rows of selected keys,
// in fp32. A product for each query is too small for the matrix library: its preparation would take longer
// than the product.
//
// Rows of keys lie anywhere: pointers name them. All rows are padded with zeros to a multiple of kRowLanes
// elements, so that loops have no remainder.
//
// Thread safety: pure functions. Determinism: the bits depend on the sizes alone.
#pragma once

#include <cstdint>

#include "weft/core/rounding.h"

namespace weft {

inline constexpr int64_t kRowLanes = 16;
inline int64_t PaddedRow(int64_t dim) { return RoundUp(dim, kRowLanes); }

// A matrix of a few rows and a column for each key. Its rows start `stride` elements apart.
struct RowMatrix {
  float* data;
  int64_t rows, keys, stride;

  float* Row(int64_t row) const { return data + row * stride; }
  // The columns of `count` keys.
  RowMatrix Columns(int64_t first, int64_t count) const { return {data + first, rows, count, stride}; }
};

// products[r, j] = rows[r] . keys[j], with rows [rows, dim].
void RowTimesKeys(const float* rows, const float* const* keys, int64_t dim, const RowMatrix& products);

// sums[r] += sum over j of weights[r, j] keys[j], with sums [rows, dim].
void AddSumOfKeys(const RowMatrix& weights, const float* const* keys, int64_t dim, float* sums);

// keys[j] += sum over r of weights[r, j] rows[r], with rows [rows, dim]. REQUIRES: the keys are distinct.
void AddSumOfRows(const RowMatrix& weights, const float* rows, int64_t dim, float* const* keys);

}  // namespace weft
