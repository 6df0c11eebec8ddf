#include "src/nn/base/row_gradients.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "src/nn/base/gradient_sum.h"
#include "src/nn/base/shapes.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// Positions sorted by id, and by position within an id. Each run of equal ids belongs to one row of the
// table.
struct PositionsSortedById {
  std::vector<int64_t> positions;
  std::vector<int64_t> run_starts;  // Index of each run in `positions`, then the number of positions.

  explicit PositionsSortedById(absl::Span<const int32_t> ids) : positions(ids.size()) {
    const auto at = [&ids](int64_t position) { return ids[static_cast<size_t>(position)]; };
    std::iota(positions.begin(), positions.end(), 0);
    std::stable_sort(positions.begin(), positions.end(), [&](int64_t a, int64_t b) { return at(a) < at(b); });
    for (size_t i = 0; i < positions.size(); ++i) {
      if (i == 0 || at(positions[i]) != at(positions[i - 1])) run_starts.push_back(static_cast<int64_t>(i));
    }
    run_starts.push_back(static_cast<int64_t>(positions.size()));
  }
  int64_t runs() const { return static_cast<int64_t>(run_starts.size()) - 1; }
};

void ZeroRows(const TensorView& gradient, int64_t rows, int64_t dim) {
  const size_t row_bytes = static_cast<size_t>(BytesOf(dim, gradient.dtype));
  ParallelFor(rows, RowGrain(dim), [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(gradient.data) + static_cast<size_t>(begin) * row_bytes, 0,
                static_cast<size_t>(end - begin) * row_bytes);
  });
}

template <typename T>
void AddRow(const T* source, int64_t dim, float* __restrict sum) {
  for (int64_t i = 0; i < dim; ++i) sum[i] += Load(source[i]);
}

template <typename T>
void ScatterAdd(const T* dy, absl::Span<const int32_t> ids, int64_t dim, float scale,
                const TensorView& gradient) {
  const PositionsSortedById sorted(ids);
  ParallelFor(sorted.runs(), RowGrain(dim), [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(dim));
    for (auto run = static_cast<size_t>(begin); run < static_cast<size_t>(end); ++run) {
      std::fill(sum.begin(), sum.end(), 0.0F);
      for (int64_t i = sorted.run_starts[run]; i < sorted.run_starts[run + 1]; ++i) {
        AddRow(dy + sorted.positions[static_cast<size_t>(i)] * dim, dim, sum.data());
      }
      if (scale != 1.0F) {
        for (float& value : sum) value *= scale;
      }
      const auto first = static_cast<size_t>(sorted.positions[static_cast<size_t>(sorted.run_starts[run])]);
      const int64_t id = ids[first];
      StoreGradient(gradient, id * dim, sum.data(), 1.0F, dim);
    }
  });
}

}  // namespace

void AddRowGradients(const Tensor& dy, absl::Span<const int32_t> ids, float scale, Parameter& table) {
  const int64_t dim = table.shape[1];
  const TensorView& gradient = WritableGradient(table);
  if (table.BeginGradWrite() == 0.0F) ZeroRows(gradient, table.shape[0], dim);
  WithElementType(dy.dtype(), [&](auto element) {
    using T = decltype(element);
    ScatterAdd(dy.As<T>(), ids, dim, scale, gradient);
  });
}

}  // namespace weft
