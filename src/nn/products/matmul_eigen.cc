// Matrix products with Eigen: for builds without oneDNN, and as the reference of tests and benchmarks.
#include <Eigen/Core>

#include "src/nn/products/matmul_backend.h"
#include "weft/core/parallel.h"

namespace weft::matmul_eigen {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const RowMajor, Eigen::Unaligned, Eigen::OuterStride<>>;
using Map = Eigen::Map<RowMajor, Eigen::Unaligned, Eigen::OuterStride<>>;

// The factor as stored in memory, before its transposition. `rows` x `columns` is its shape in the product.
ConstMap InMemory(const Factor& factor, int64_t rows, int64_t columns) {
  const auto* data = static_cast<const float*>(factor.data);
  return factor.transposed ? ConstMap(data, columns, rows, Eigen::OuterStride<>(factor.leading))
                           : ConstMap(data, rows, columns, Eigen::OuterStride<>(factor.leading));
}

template <typename A, typename B>
void Accumulate(const A& a, const B& b, float beta, Map& c) {
  if (beta == 0.0F) {
    c.noalias() = a * b;
    return;
  }
  if (beta != 1.0F) c *= beta;
  c.noalias() += a * b;
}

// Computes rows [begin, end) of C.
void MultiplyRows(const Product& product, int64_t begin, int64_t end) {
  const ConstMap a = InMemory(product.a, product.m, product.k);
  const ConstMap b = InMemory(product.b, product.k, product.n);
  const int64_t rows = end - begin;
  Map c(static_cast<float*>(product.c) + begin * product.c_leading, rows, product.n,
        Eigen::OuterStride<>(product.c_leading));
  if (product.a.transposed) {
    const auto part = a.middleCols(begin, rows).transpose();
    product.b.transposed ? Accumulate(part, b.transpose(), product.beta, c)
                         : Accumulate(part, b, product.beta, c);
  } else {
    const auto part = a.middleRows(begin, rows);
    product.b.transposed ? Accumulate(part, b.transpose(), product.beta, c)
                         : Accumulate(part, b, product.beta, c);
  }
}

}  // namespace

bool Supports(DType factor_dtype, DType c_dtype) {
  return factor_dtype == DType::kF32 && c_dtype == DType::kF32;
}

void Multiply(const Product& product) {
  constexpr int64_t kRowGrain = 32;
  ParallelFor(product.m, kRowGrain, [&](int64_t begin, int64_t end) { MultiplyRows(product, begin, end); });
}

}  // namespace weft::matmul_eigen
