#include "weft/nn/matmul.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "src/nn/products/element.h"
#include "src/nn/products/matmul_backend.h"
#include "src/nn/products/panel_kernels.h"
#include "src/nn/products/scratch.h"
#include "weft/core/parallel.h"
#include "weft/core/spans.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

namespace backend = WEFT_MATMUL_BACKEND;

// C = sum + beta C, rounded once. `sum` is [m, n] in fp32, dense.
void StoreSum(const Product& product, const float* sum) {
  WithElementType(product.c_dtype, [&](auto element) {
    using T = decltype(element);
    ParallelFor(product.m, RowGrain(product.n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        StoreSumRun(sum + row * product.n, product.beta, product.n,
                    static_cast<T*>(product.c) + row * product.c_leading);
      }
    });
  });
}

// Converts a factor of `dtype` to fp32 with dense rows, in `scratch`.
Factor Widen(Factor factor, DType dtype, int64_t rows, int64_t columns, Scratch& scratch) {
  if (factor.transposed) std::swap(rows, columns);
  float* wide = scratch.Floats(rows * columns);
  const auto* narrow = static_cast<const std::byte*>(factor.data);
  const int64_t row_bytes = BytesOf(factor.leading, dtype);
  ParallelFor(rows, RowGrain(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      ConvertRun(narrow + row * row_bytes, dtype, wide + row * columns, DType::kF32, columns);
    }
  });
  return {wide, columns, factor.transposed};
}

enum class Path : uint8_t { kPanels, kLibrary, kInF32 };

Path PathOf(const Product& product) {
  if (matmul_panels::Supports(product.factor_dtype, product.c_dtype) && matmul_panels::IsWorthIt(product))
    return Path::kPanels;
  return backend::Supports(product.factor_dtype, product.c_dtype) ? Path::kLibrary : Path::kInF32;
}

// Product for dtypes that the library does not support: converts factors to fp32, multiplies, rounds the
// result.
void MultiplyInF32(const Product& product) {
  static thread_local Scratch wide_a;
  static thread_local Scratch wide_b;
  static thread_local Scratch wide_c;
  Product wide = product;
  wide.factor_dtype = DType::kF32;
  if (product.factor_dtype != DType::kF32) {
    wide.a = Widen(product.a, product.factor_dtype, product.m, product.k, wide_a);
    wide.b = Widen(product.b, product.factor_dtype, product.k, product.n, wide_b);
  }
  if (product.c_dtype == DType::kF32) {
    backend::Multiply(wide);
    return;
  }
  wide.c_dtype = DType::kF32;
  wide.c = wide_c.Floats(product.m * product.n);
  wide.c_leading = product.n;
  wide.beta = 0.0F;
  backend::Multiply(wide);
  StoreSum(product, static_cast<float*>(wide.c));
}

}  // namespace

std::string_view MatmulLibrary() { return backend::kName; }

std::string_view PanelInstructions() {
  if (panels::AmxUnit() != nullptr) return "AMX";
  return panels::Avx512Bf16Unit() != nullptr ? "AVX512-BF16" : "";
}

bool UsesNativeMatmul(DType factor_dtype) { return backend::Supports(factor_dtype, DType::kF32); }

void Matmul(int64_t m, int64_t n, int64_t k, DType factor_dtype, Factor a, Factor b, float beta,
            DType c_dtype, void* c, int64_t c_leading) {
  WEFT_CHECK(IsComputeDType(factor_dtype) && IsComputeDType(c_dtype),
             "matrix products take operands of f32, bf16 and f16 only");
  WEFT_CHECK(c_leading >= n && a.leading >= (a.transposed ? m : k) && b.leading >= (b.transposed ? k : n),
             "a matrix operand has rows longer than its leading dimension");
  if (m == 0 || n == 0) return;
  const Span span("product",
                  [&] { return absl::StrCat(m, " x ", n, " x ", k, " ", ToAbsl(Name(factor_dtype))); });
  const Product product = {m, n, k, factor_dtype, a, b, beta, c_dtype, c, c_leading};
  if (k == 0) {  // An empty sum: C = beta C.
    static thread_local Scratch zeros;
    float* sum = zeros.Floats(m * n);
    std::fill_n(sum, m * n, 0.0F);
    StoreSum(product, sum);
    return;
  }
  switch (PathOf(product)) {
    case Path::kPanels:
      return matmul_panels::Multiply(product);
    case Path::kLibrary:
      return backend::Multiply(product);
    case Path::kInF32:
      return MultiplyInF32(product);
  }
}

int64_t MatmulScratchBytes(DType factor_dtype, absl::Span<const ProductSizes> products) {
  int64_t wide_a = 0, wide_b = 0, wide_c = 0, sum_bytes = 0;
  for (const ProductSizes& sizes : products) {
    const Product product = {.m = sizes.m,
                             .n = sizes.n,
                             .k = sizes.k,
                             .factor_dtype = factor_dtype,
                             .a = {},
                             .b = {},
                             .beta = 0,
                             .c_dtype = sizes.c_dtype,
                             .c = nullptr,
                             .c_leading = sizes.n};
    const Path path = PathOf(product);
    if (path == Path::kPanels) sum_bytes = std::max(sum_bytes, matmul_panels::WaitingSumBytes(product));
    if (path != Path::kInF32) continue;
    if (factor_dtype != DType::kF32) {
      wide_a = std::max(wide_a, sizes.m * sizes.k);
      wide_b = std::max(wide_b, sizes.k * sizes.n);
    }
    if (sizes.c_dtype != DType::kF32) wide_c = std::max(wide_c, sizes.m * sizes.n);
  }
  return sum_bytes + (wide_a + wide_b + wide_c) * static_cast<int64_t>(sizeof(float));
}

}  // namespace weft
