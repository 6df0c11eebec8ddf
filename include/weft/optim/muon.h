// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024): the update of a
// matrix is the orthogonal factor of its momentum, which a Newton-Schulz iteration approximates. Kernels on
// local memory; ShardedMuon applies them to shards.
//
// Thread safety: any thread may call. A call uses the ThreadCount() threads of the calling thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "weft/core/tensor_view.h"

namespace weft {

// Factor of the learning rate of a matrix with A rows and B columns, by the names of torch.optim.Muon's
// adjust_lr_fn. kOriginal: sqrt(max(1, A / B)). kMatchRmsAdamW: 0.2 sqrt(max(A, B)), which gives an update
// about the size of one of AdamW (Liu et al., "Muon is Scalable for LLM Training", 2025, section 2.2).
enum class MuonLrScale : uint8_t { kOriginal, kMatchRmsAdamW };
// "original", "match_rms_adamw".
std::string_view Name(MuonLrScale scale);

struct MuonOptions {
  double lr = 1e-3;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;
  MuonLrScale lr_scale = MuonLrScale::kOriginal;
  int iterations = 5;
  std::array<double, 3> coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;  // Smallest norm by which a matrix is divided.
};

// REQUIRES: `shape` has two dims.
double MuonLrFactor(MuonLrScale scale, const Shape& shape);

// Adds a gradient to the momentum and replaces it by the direction of the update:
//   g = grad * gradient_scale,  b += (1 - momentum) * (g - b),
//   grad = nesterov ? g + momentum * (b - g) : b.
// Elementwise, so that the division into shards and threads does not affect the bits.
void MuonDirection(const MuonOptions& options, double gradient_scale, float* grad, float* momentum_buffer,
                   int64_t count);

// p = p * (1 - lr * weight_decay) - lr * lr_factor * update.
void MuonUpdate(const MuonOptions& options, double lr_factor, float* param, const float* update,
                int64_t count);

// Replaces a matrix [rows, cols], row-major, by U V^T nearly, where U S V^T is its singular value
// decomposition: X = M / max(|M|, eps) with the Frobenius norm, then `iterations` times
//   X = a X + b A X + c A A X,  A = X X^T                             (if rows > cols: of the transpose).
// With the defaults, singular values above 2e-3 of the Frobenius norm end between 0.68 and 1.21; smaller ones
// grow by a factor of at most 485. Computed in f32, where torch.optim.Muon uses bf16.
// The bits do not depend on the thread count: each thread multiplies blocks of fixed size alone.
void Orthogonalize(const MuonOptions& options, float* matrix, int64_t rows, int64_t cols);

// Hash of what Orthogonalize makes of two fixed matrices, a wide and a tall one, which are large enough for
// the kernels of large matrices. The instructions of the processor choose these kernels, and so the bits:
// processors whose hashes differ give different bits.
uint64_t HashOfOrthogonalize(const MuonOptions& options);

// Floating-point operations of Orthogonalize, which computes only half of the symmetric products A and A A.
double OrthogonalizeOperations(const MuonOptions& options, int64_t rows, int64_t cols);

}  // namespace weft
