#include "src/nn/sparse/row_products.h"

#include <algorithm>

#include "src/nn/kernels/vector_math.h"

namespace weft {
namespace {

// Rows that are multiplied at once, and columns whose sums are kept in registers meanwhile.
constexpr int64_t kRowsAtOnce = 4;
constexpr int64_t kColumnsAtOnce = 64;

float SumOfLanes(float* __restrict lanes) {
  for (int64_t half = kRowLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

template <int64_t kRows>
void RowTimesKeysOf(const float* __restrict rows, const float* __restrict keys, int64_t dim,
                    const RowMatrix& products, int64_t first_row) {
  float* __restrict out = products.Row(first_row);
  for (int64_t key = 0; key < products.keys; ++key) {
    float lanes[kRows][kRowLanes] = {};
    for (int64_t i = 0; i < dim; i += kRowLanes) {
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t lane = 0; lane < kRowLanes; ++lane) {
          lanes[row][lane] =
              MultiplyAdd(rows[row * dim + i + lane], keys[key * dim + i + lane], lanes[row][lane]);
        }
      }
    }
    for (int64_t row = 0; row < kRows; ++row) out[row * products.stride + key] = SumOfLanes(lanes[row]);
  }
}

// Columns [first, first + kColumns) of the sums.
template <int64_t kRows, int64_t kColumns>
void SumOfKeysOf(const RowMatrix& weights, const float* __restrict keys, int64_t dim, float* __restrict out,
                 int64_t first_row, int64_t first) {
  const float* __restrict weight = weights.Row(first_row);
  float sums[kRows][kColumns] = {};
  for (int64_t key = 0; key < weights.keys; ++key) {
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kColumns; ++i) {
        sums[row][i] =
            MultiplyAdd(weight[row * weights.stride + key], keys[key * dim + first + i], sums[row][i]);
      }
    }
  }
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kColumns; ++i) out[row * dim + first + i] = sums[row][i];
  }
}

template <int64_t kRows, int64_t kColumns>
void AddToSelectedKeysOf(const RowMatrix& weights, const float* __restrict rows, int64_t dim,
                         const int32_t* __restrict numbers, float* __restrict sums, int64_t stride,
                         int64_t first_row, int64_t first) {
  const float* __restrict weight = weights.Row(first_row);
  for (int64_t key = 0; key < weights.keys; ++key) {
    float* __restrict target = sums + numbers[key] * stride + first;
    float sum[kColumns];
    for (int64_t i = 0; i < kColumns; ++i) sum[i] = target[i];
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kColumns; ++i) {
        sum[i] = MultiplyAdd(weight[row * weights.stride + key], rows[row * dim + first + i], sum[i]);
      }
    }
    for (int64_t i = 0; i < kColumns; ++i) target[i] = sum[i];
  }
}

// Calls visit.operator()<n>(first) for consecutive groups [first, first + n) of rows.
template <typename Visit>
void ForEachRowGroup(int64_t rows, const Visit& visit) {
  int64_t row = 0;
  for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce) visit.template operator()<kRowsAtOnce>(row);
  for (; row + 2 <= rows; row += 2) visit.template operator()<2>(row);
  if (row < rows) visit.template operator()<1>(row);
}

// The same for columns.
template <typename Visit>
void ForEachColumnGroup(int64_t columns, const Visit& visit) {
  int64_t column = 0;
  for (; column + kColumnsAtOnce <= columns; column += kColumnsAtOnce) {
    visit.template operator()<kColumnsAtOnce>(column);
  }
  for (; column < columns; column += kRowLanes) visit.template operator()<kRowLanes>(column);
}

}  // namespace

void RowTimesKeys(const float* rows, const float* keys, int64_t dim, const RowMatrix& products) {
  ForEachRowGroup(products.rows, [&]<int64_t kRows>(int64_t row) {
    RowTimesKeysOf<kRows>(rows + row * dim, keys, dim, products, row);
  });
}

void SumOfKeys(const RowMatrix& weights, const float* keys, int64_t dim, float* sums) {
  ForEachRowGroup(weights.rows, [&]<int64_t kRows>(int64_t row) {
    ForEachColumnGroup(dim, [&]<int64_t kColumns>(int64_t column) {
      SumOfKeysOf<kRows, kColumns>(weights, keys, dim, sums + row * dim, row, column);
    });
  });
}

void AddToSelectedKeys(const RowMatrix& weights, const float* rows, int64_t dim, const int32_t* numbers,
                       float* sums, int64_t stride) {
  ForEachRowGroup(weights.rows, [&]<int64_t kRows>(int64_t row) {
    ForEachColumnGroup(dim, [&]<int64_t kColumns>(int64_t column) {
      AddToSelectedKeysOf<kRows, kColumns>(weights, rows + row * dim, dim, numbers, sums, stride, row,
                                           column);
    });
  });
}

}  // namespace weft
