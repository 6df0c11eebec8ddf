// Matrix products: the one door to the matrix library (oneDNN, or Eigen where a build has none).
//
// Thread safety: any thread may call. A product uses the calling thread's ThreadCount() threads.
// Bits: a result depends on sizes, layout, dtypes and thread count, not on the caller or on where in memory
//   the operands lie, as long as they are aligned to their elements.
#pragma once

#include <cstdint>

#include "weft/core/dtype.h"

namespace weft {

// A factor, row-major in memory, `leading` elements from row to row. Transposed, the factor is the transpose
// of what lies in memory.
struct Factor {
  const void* data;
  int64_t leading;
  bool transposed = false;
};

// C[m, n] = A[m, k] B[k, n] + beta C, summed in fp32 and rounded once to C's dtype. With beta 0 the old C is
// not read. Factors are both f32 or both bf16; C is f32 or bf16, `c_leading` elements from row to row, and
// overlaps no factor. Sizes may be 0.
void Matmul(int64_t m, int64_t n, int64_t k, DType factor_dtype, Factor a, Factor b, float beta,
            DType c_dtype, void* c, int64_t c_leading);

// Whether bf16 factors are multiplied as they are, by instructions that the CPU has for them: nearly twice as
// fast as f32. Else they are widened to f32 first, which with few tokens takes up to a tenth of a step.
// The CPU decides and no stopwatch: how a product is computed decides its bits, and they are to be the same
// in every run, and on all ranks of a machine.
bool MultipliesBf16();

// The usual case: all in f32.
inline void Matmul(int64_t m, int64_t n, int64_t k, Factor a, Factor b, float beta, float* c,
                   int64_t c_leading) {
  Matmul(m, n, k, DType::kF32, a, b, beta, DType::kF32, c, c_leading);
}

}  // namespace weft
