// Matrix products through oneDNN, or through Eigen in a build without oneDNN. Nothing else in weft calls
// these libraries. Large products of bf16 factors use kernels of weft on a CPU with AMX.
//
// Thread safety: any thread may call. A product uses the ThreadCount() threads of the calling thread.
// Determinism: the bits of a result depend on sizes, layout, dtypes and thread count. They do not depend
//   on the calling thread, nor on the addresses of the operands.
//
// Note [Signal handlers]
// Problem: while oneDNN's sgemm computes (2.6.3), the stack pointer points into a buffer on the heap. The
//   kernel writes the frame of a signal handler below the stack pointer, into the heap.
// Rule: a program that handles signals does one of two things. It blocks them in every thread and receives
//   them synchronously in a dedicated thread (sigwaitinfo, signalfd). Or it installs handlers with SA_ONSTACK
//   and gives every thread that computes an alternate stack (sigaltstack is per thread; OpenMP starts threads
//   too).
// Why it suffices: no handler then runs on the stack of a product.
// Without it: a handler now and then corrupts the heap, and the program crashes.
#pragma once

#include <cstdint>
#include <string_view>

#include <absl/types/span.h>

#include "weft/core/dtype.h"

namespace weft {

// One operand of a product: a row-major matrix in memory whose rows start `leading` elements apart. If
// `transposed`, the operand is the transpose of that matrix.
struct Factor {
  const void* data;
  int64_t leading;
  bool transposed = false;
};

// C[m, n] = A[m, k] B[k, n] + beta C, summed in fp32 and rounded once to C's dtype. With beta 0 the old C is
// not read. Sizes may be 0.
// REQUIRES: A and B have one dtype; it and C's are f32, bf16 or f16. C overlaps neither A nor B. The rows of
//   C start `c_leading` elements apart. All three are aligned to their elements.
void Matmul(int64_t m, int64_t n, int64_t k, DType factor_dtype, Factor a, Factor b, float beta,
            DType c_dtype, void* c, int64_t c_leading);

struct ProductSizes {
  int64_t m, n, k;
  DType c_dtype;
};
// Bytes of scratch memory that a thread keeps once it has computed products of these sizes: factors and
// results in fp32 if neither the CPU nor the library multiplies the dtype, and sums of panels. Left out:
// packed panels, of a few times the second-level cache, and the scratch memory of the library.
int64_t MatmulScratchBytes(DType factor_dtype, absl::Span<const ProductSizes> products);

// True if products of bf16 or f16 factors use the CPU's instructions for them. Those for bf16
// (avx512_core_bf16) are nearly twice as fast as f32; for f16 (AVX512-FP16) oneDNN must have kernels too.
// Otherwise Matmul converts the factors to f32 first, which takes up to a tenth of a step with few tokens.
// Only the CPU's instruction set and the library decide, never a measurement: the choice affects the bits of
// the result, and every run and every rank of a machine must give the same bits.
bool UsesNativeMatmul(DType factor_dtype);
// The library of most products: "oneDNN" or "Eigen".
std::string_view MatmulLibrary();
// The instructions of weft's own kernels for bf16: "AMX", "AVX512-BF16", or "" if the CPU, the system or the
// compiler has neither. With AMX large products of bf16 factors use these kernels in place of the library.
std::string_view PanelInstructions();

// Matmul with all operands in f32.
inline void Matmul(int64_t m, int64_t n, int64_t k, Factor a, Factor b, float beta, float* c,
                   int64_t c_leading) {
  Matmul(m, n, k, DType::kF32, a, b, beta, DType::kF32, c, c_leading);
}

}  // namespace weft
