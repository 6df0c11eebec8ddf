#include "src/nn/sparse/row_products.h"

#include <algorithm>
#include <cstring>

#include "src/nn/kernels/vector_math.h"

namespace weft {
namespace {

// Rows that are multiplied at once, and columns whose sums are kept in registers meanwhile.
constexpr int64_t kRowsAtOnce = 4;
constexpr int64_t kColumnsAtOnce = 64;

// A vector of kRowLanes floats, an extension of GCC and Clang for every processor.
using Lanes = float __attribute__((vector_size(kRowLanes * sizeof(float))));

Lanes LoadLanes(const float* values) {
  Lanes lanes;
  std::memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

// By elements, as products and sums of vectors would not be contracted. The compiler makes one instruction
// of it.
Lanes MultiplyAddLanes(const Lanes& a, const Lanes& b, const Lanes& c) {
  float x[kRowLanes], y[kRowLanes], sum[kRowLanes];
  std::memcpy(x, &a, sizeof(x));
  std::memcpy(y, &b, sizeof(y));
  std::memcpy(sum, &c, sizeof(sum));
  for (int64_t lane = 0; lane < kRowLanes; ++lane) sum[lane] = MultiplyAdd(x[lane], y[lane], sum[lane]);
  return LoadLanes(sum);
}

// Element i of the result is the sum of the lanes of v[i]. Adds up pairs of vectors, in four rounds of
// shuffles: a sum of each vector by itself would take three times as many instructions.
Lanes SumsOfLanes(const Lanes (&v)[kRowLanes]) {
  Lanes pairs[8], quads[4], halves[2];
  for (int64_t i = 0; i < 8; ++i) {
    const Lanes a = v[2 * i], b = v[2 * i + 1];
    pairs[i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
               __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  for (int64_t i = 0; i < 4; ++i) {
    const Lanes a = pairs[2 * i], b = pairs[2 * i + 1];
    quads[i] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  for (int64_t i = 0; i < 2; ++i) {
    const Lanes a = quads[2 * i], b = quads[2 * i + 1];
    halves[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
  const Lanes a = halves[0], b = halves[1];
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

// Products of kRows rows with as many keys as give kRowLanes products: [kRows, keys].
template <int64_t kRows>
Lanes ProductsOf(const float* rows, const float* const* keys, int64_t dim) {
  constexpr int64_t kKeys = kRowLanes / kRows;
  Lanes sums[kRowLanes] = {};
  for (int64_t i = 0; i < dim; i += kRowLanes) {
    for (int64_t key = 0; key < kKeys; ++key) {
      const Lanes values = LoadLanes(keys[key] + i);
      for (int64_t row = 0; row < kRows; ++row) {
        Lanes& sum = sums[row * kKeys + key];
        sum = MultiplyAddLanes(LoadLanes(rows + row * dim + i), values, sum);
      }
    }
  }
  return SumsOfLanes(sums);
}

template <int64_t kRows>
void RowTimesKeysOf(const float* rows, const float* const* keys, int64_t dim, const RowMatrix& products,
                    int64_t first_row) {
  constexpr int64_t kKeys = kRowLanes / kRows;
  for (int64_t first = 0; first < products.keys; first += kKeys) {
    const int64_t count = std::min(kKeys, products.keys - first);
    const float* block[kKeys];  // The last key stands for missing ones.
    for (int64_t key = 0; key < kKeys; ++key) block[key] = keys[first + std::min(key, count - 1)];
    const Lanes sums = ProductsOf<kRows>(rows, block, dim);
    for (int64_t row = 0; row < kRows; ++row) {
      float* out = products.Row(first_row + row) + first;
      if (count == kKeys) {
        std::memcpy(out, reinterpret_cast<const float*>(&sums) + row * kKeys, kKeys * sizeof(float));
      } else {
        for (int64_t key = 0; key < count; ++key) out[key] = sums[row * kKeys + key];
      }
    }
  }
}

// Columns [first, first + kColumns) of the sums.
template <int64_t kRows, int64_t kColumns>
void AddSumOfKeysOf(const RowMatrix& weights, const float* const* keys, int64_t dim, float* __restrict out,
                    int64_t first_row, int64_t first) {
  const float* __restrict weight = weights.Row(first_row);
  float sums[kRows][kColumns];
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kColumns; ++i) sums[row][i] = out[row * dim + first + i];
  }
  for (int64_t key = 0; key < weights.keys; ++key) {
    const float* __restrict values = keys[key] + first;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kColumns; ++i) {
        sums[row][i] = MultiplyAdd(weight[row * weights.stride + key], values[i], sums[row][i]);
      }
    }
  }
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kColumns; ++i) out[row * dim + first + i] = sums[row][i];
  }
}

template <int64_t kRows, int64_t kColumns>
void AddSumOfRowsOf(const RowMatrix& weights, const float* __restrict rows, int64_t dim, float* const* keys,
                    int64_t first_row, int64_t first) {
  const float* __restrict weight = weights.Row(first_row);
  float values[kRows][kColumns];
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kColumns; ++i) values[row][i] = rows[row * dim + first + i];
  }
  for (int64_t key = 0; key < weights.keys; ++key) {
    float* __restrict target = keys[key] + first;
    float sum[kColumns];
    for (int64_t i = 0; i < kColumns; ++i) sum[i] = target[i];
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kColumns; ++i) {
        sum[i] = MultiplyAdd(weight[row * weights.stride + key], values[row][i], sum[i]);
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
  if (column + kColumnsAtOnce / 2 <= columns) {
    visit.template operator()<kColumnsAtOnce / 2>(column);
    column += kColumnsAtOnce / 2;
  }
  if (column < columns) visit.template operator()<kRowLanes>(column);
}

}  // namespace

void RowTimesKeys(const float* rows, const float* const* keys, int64_t dim, const RowMatrix& products) {
  ForEachRowGroup(products.rows, [&]<int64_t kRows>(int64_t row) {
    RowTimesKeysOf<kRows>(rows + row * dim, keys, dim, products, row);
  });
}

void AddSumOfKeys(const RowMatrix& weights, const float* const* keys, int64_t dim, float* sums) {
  ForEachRowGroup(weights.rows, [&]<int64_t kRows>(int64_t row) {
    ForEachColumnGroup(dim, [&]<int64_t kColumns>(int64_t column) {
      AddSumOfKeysOf<kRows, kColumns>(weights, keys, dim, sums + row * dim, row, column);
    });
  });
}

void AddSumOfRows(const RowMatrix& weights, const float* rows, int64_t dim, float* const* keys) {
  ForEachRowGroup(weights.rows, [&]<int64_t kRows>(int64_t row) {
    ForEachColumnGroup(dim, [&]<int64_t kColumns>(int64_t column) {
      AddSumOfRowsOf<kRows, kColumns>(weights, rows + row * dim, dim, keys, row, column);
    });
  });
}

}  // namespace weft
