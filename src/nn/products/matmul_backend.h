// Interface of the matrix libraries. Each library has its own namespace, so that tests and benchmarks can
// compare them. The build selects the library that Matmul uses (WEFT_MATMUL_BACKEND).
#pragma once

#include <cstdint>
#include <string_view>

#include "weft/core/dtype.h"
#include "weft/nn/matmul.h"

namespace weft {

// Arguments of one Matmul. REQUIRES: m, n and k are positive.
struct Product {
  int64_t m, n, k;
  DType factor_dtype;
  Factor a, b;
  float beta;
  DType c_dtype;
  void* c;
  int64_t c_leading;
};

namespace matmul_onednn {
inline constexpr std::string_view kName = "oneDNN";
// True if Multiply supports these dtypes natively. False also for dtypes that the library would emulate
// slowly.
bool Supports(DType factor_dtype, DType c_dtype);
void Multiply(const Product& product);
}  // namespace matmul_onednn

// weft's own products of bf16 factors, on a CPU with AMX or AVX512-BF16.
namespace matmul_panels {
bool Supports(DType factor_dtype, DType c_dtype);
// True if the CPU has AMX, and the product is large enough that packing its factors pays. An older version,
// which packed at a third of the speed, was measured on AMX: it had 0.6 to 1.0 of the rate of oneDNN 2.6.3 at
// 128 rows, and 1.0 to 1.8 from 768 x 768 x 1024 on. This version takes 0.6 of its time at 128 rows, measured
// with a kernel about as fast as AMX that only reads its panels.
bool IsWorthIt(const Product& product);
void Multiply(const Product& product);
// Bytes of the sums that Multiply keeps between depths: Note [Blocks] in matmul_panels.cc.
int64_t WaitingSumBytes(const Product& product);
}  // namespace matmul_panels

namespace matmul_eigen {
inline constexpr std::string_view kName = "Eigen";
bool Supports(DType factor_dtype, DType c_dtype);
void Multiply(const Product& product);
}  // namespace matmul_eigen

}  // namespace weft
