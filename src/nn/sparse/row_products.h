// Products of a few rows (the query heads of a group, or the index heads) with gathered rows of keys, in fp32.
// A product for each query is too small for the matrix library: its preparation would take longer than the
// product.
//
// Rows are padded with zeros to a multiple of kRowLanes elements, so that loops have no remainder. Matrices
// [rows, keys] have `stride` elements from row to row.
//
// Thread safety: pure functions. Determinism: the bits depend on the sizes alone.
#pragma once

#include <cstdint>

namespace weft {

inline constexpr int64_t kRowLanes = 16;
inline int64_t PaddedRow(int64_t dim) { return (dim + kRowLanes - 1) / kRowLanes * kRowLanes; }

// A matrix of a few rows and a column for each key.
struct RowMatrix {
  float* data;
  int64_t rows, keys, stride;

  float* Row(int64_t row) const { return data + row * stride; }
};

// products[r, j] = rows[r] . keys[j], with rows [rows, dim] and keys [keys, dim]. REQUIRES: dim is padded.
void RowTimesKeys(const float* rows, const float* keys, int64_t dim, const RowMatrix& products);

// sums[r] = sum over j of weights[r, j] keys[j], with sums [rows, dim] and keys [keys, dim].
void SumOfKeys(const RowMatrix& weights, const float* keys, int64_t dim, float* sums);

// sums[numbers[j]] += sum over r of weights[r, j] rows[r], with rows [rows, dim] and rows of `sums` that start
// `stride` elements apart. REQUIRES: no number occurs twice.
void AddToSelectedKeys(const RowMatrix& weights, const float* rows, int64_t dim, const int32_t* numbers,
                       float* sums, int64_t stride);

}  // namespace weft
