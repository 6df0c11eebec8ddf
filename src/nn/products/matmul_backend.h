// What a matrix library must offer. Each lives in a namespace of its own, so that tests and benchmarks can
// hold one against the other; the build chooses the one that Matmul uses.
#pragma once

#include <cstdint>

#include "weft/core/dtype.h"
#include "weft/nn/matmul.h"

namespace weft {

// All sizes are positive.
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
// Whether the library multiplies these natively, at a speed that is worth it.
bool Supports(DType factor_dtype, DType c_dtype);
void Multiply(const Product& product);
}  // namespace matmul_onednn

namespace matmul_eigen {
bool Supports(DType factor_dtype, DType c_dtype);
void Multiply(const Product& product);
}  // namespace matmul_eigen

}  // namespace weft
