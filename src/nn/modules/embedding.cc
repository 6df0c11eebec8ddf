#include "weft/nn/embedding.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "src/nn/base/gradient_sum.h"
#include "src/nn/base/module_checks.h"
#include "src/nn/base/shapes.h"
#include "src/nn/kernels/token_ids.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// Positions sorted by id, and by position within an id. Each run of equal ids belongs to one row of the
// table.
struct PositionsSortedById {
  std::vector<int64_t> positions;
  std::vector<int64_t> run_starts;  // Index of each run in `positions`, then the number of positions.

  PositionsSortedById(const int32_t* ids, int64_t count) : positions(static_cast<size_t>(count)) {
    std::iota(positions.begin(), positions.end(), 0);
    std::stable_sort(positions.begin(), positions.end(),
                     [ids](int64_t a, int64_t b) { return ids[a] < ids[b]; });
    for (int64_t i = 0; i < count; ++i) {
      if (i == 0 || ids[positions[static_cast<size_t>(i)]] != ids[positions[static_cast<size_t>(i - 1)]]) {
        run_starts.push_back(i);
      }
    }
    run_starts.push_back(count);
  }
  int64_t runs() const { return static_cast<int64_t>(run_starts.size()) - 1; }
};

void ZeroRows(const TensorView& gradient, int64_t rows, int64_t dim) {
  const size_t row_bytes = static_cast<size_t>(dim) * SizeOf(gradient.dtype);
  ParallelFor(rows, RowGrain(dim), [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(gradient.data) + static_cast<size_t>(begin) * row_bytes, 0,
                static_cast<size_t>(end - begin) * row_bytes);
  });
}

// The scale in the precision of a dtype.
template <typename T>
float Rounded(float scale) {
  return Load(Round<T>(scale));
}

template <typename T>
void ScaleRow(T* row, int64_t dim, float scale) {
  for (int64_t i = 0; i < dim; ++i) row[i] = Round<T>(Load(row[i]) * scale);
}

template <typename T>
void AddRow(const T* source, int64_t dim, float* __restrict sum) {
  for (int64_t i = 0; i < dim; ++i) sum[i] += Load(source[i]);
}

// Adds the rows of dy [count, dim], times the scale, to the rows of `gradient` that `ids` select. Rows with
// the same id are summed in fp32 and rounded once.
template <typename T>
void ScatterAdd(const T* dy, const int32_t* ids, int64_t count, int64_t dim, float scale,
                const TensorView& gradient) {
  const PositionsSortedById sorted(ids, count);
  ParallelFor(sorted.runs(), RowGrain(dim), [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(dim));
    for (auto run = static_cast<size_t>(begin); run < static_cast<size_t>(end); ++run) {
      std::fill(sum.begin(), sum.end(), 0.0F);
      for (int64_t i = sorted.run_starts[run]; i < sorted.run_starts[run + 1]; ++i) {
        AddRow(dy + sorted.positions[static_cast<size_t>(i)] * dim, dim, sum.data());
      }
      if (scale != 1.0F) ScaleRow(sum.data(), dim, scale);
      const int64_t id = ids[sorted.positions[static_cast<size_t>(sorted.run_starts[run])]];
      StoreGradient(gradient, id * dim, sum.data(), 1.0F, dim);
    }
  });
}

}  // namespace

Embedding::Embedding(std::string name, int64_t vocab_size, int64_t dim, Initializer initializer, float scale)
    : Module(std::move(name)), vocab_size_(vocab_size), dim_(dim), scale_(scale) {
  AddParameter("weight", {vocab_size, dim}, initializer);
}

absl::StatusOr<Tensors> Embedding::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 1));
  WEFT_RETURN_IF_ERROR(CheckParameters(*this, parameters()[0]->data.dtype));
  const Tensor& ids = inputs[0];
  WEFT_RETURN_IF_ERROR(CheckTokenIds(ids, vocab_size_, name()));
  const TensorView& table = UnshardedData(*parameters()[0], parameters()[0]->data.dtype);
  Shape shape = ids.shape();
  shape.push_back(dim_);
  Tensor output = Tensor::Empty(table.dtype, std::move(shape));
  const size_t row_bytes = static_cast<size_t>(dim_) * SizeOf(table.dtype);
  ParallelFor(ids.elements(), RowGrain(dim_), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto id = static_cast<size_t>(ids.As<int32_t>()[i]);
      std::memcpy(static_cast<char*>(output.view().data) + static_cast<size_t>(i) * row_bytes,
                  static_cast<const char*>(table.data) + id * row_bytes, row_bytes);
    }
  });
  if (scale_ != 1.0F) {
    WithElementType(output.dtype(), [&](auto element) {
      using T = decltype(element);
      ParallelFor(ids.elements(), RowGrain(dim_), [&](int64_t begin, int64_t end) {
        ScaleRow(output.As<T>() + begin * dim_, (end - begin) * dim_, Rounded<T>(scale_));
      });
    });
  }
  if (invocation.is_saving()) invocation.Save(this, {ids});
  return Tensors{std::move(output)};
}

absl::StatusOr<Tensors> Embedding::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  const Tensor ids = invocation.PopSaved(this)[0];
  WEFT_RETURN_IF_ERROR(CheckGradientCount(*this, output_gradients, 1));
  const Tensor& dy = output_gradients[0];
  Parameter& parameter = *parameters()[0];
  if (!parameter.requires_grad) return Tensors{Tensor()};
  WEFT_RETURN_IF_ERROR(CheckGradientMemory(*this));
  const TensorView& gradient = WritableGradient(parameter);
  if (parameter.BeginGradWrite() == 0.0F) ZeroRows(gradient, vocab_size_, dim_);
  WithElementType(dy.dtype(), [&](auto element) {
    using T = decltype(element);
    ScatterAdd(dy.As<T>(), ids.As<int32_t>(), ids.elements(), dim_, Rounded<T>(scale_), gradient);
  });
  return Tensors{Tensor()};
}

}  // namespace weft
