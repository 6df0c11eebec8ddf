// Test case of the attention kernels: one problem, computed by the kernels and by the fp64 oracle.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/nn/gradient_check.h"
#include "tests/support/attention_oracle.h"
#include "weft/core/tensor.h"
#include "weft/nn/attention_kernel.h"

namespace weft::testing {

// Memory layout of the tensors: dense, with heads before tokens, or a slice of a larger tensor.
enum class Memory { kDense, kHeadsFirst, kPartOfWider };

struct AttentionCase {
  AttentionMask mask;
  TokenRuns q_runs;
  std::vector<TokenRuns> key_blocks;
  int64_t batch = 1, heads = 2, kv_heads = 2, group = 1, head_offset = 0;
  int64_t head_dim = 8, value_dim = 8;
  DType dtype = DType::kF32;
  Memory memory = Memory::kDense;
  float scale = 0.3F;
  std::shared_ptr<const PairMask> pair_mask = nullptr;
};

// The kernels' tensors for a case, and the same problem for the oracle.
struct KernelRun {
  explicit KernelRun(const AttentionCase& c);

  // Both fill the targets that the kernels must overwrite with NaN first.
  void Forward(const TokenRuns& q_runs);
  void Backward(const TokenRuns& q_runs, float dq_beta = 0.0F, float key_beta = 0.0F);
  AttentionBackwardInputs BackwardInputs() const { return {.lse = lse, .delta = delta, .dout = dout}; }

  std::vector<Tensor> keep;  // Memory of the views.
  AttentionProblem problem;
  TensorView q, dout, out, dq, lse, delta;
  std::vector<KeyBlock> keys;
  std::vector<KeyGradients> gradients;
  OracleAttention oracle;
};

// The values of all blocks, concatenated along the key dim: those of one tensor [batch, keys, ...].
template <typename Block>
std::vector<double> Joined(const std::vector<Block>& blocks, TensorView Block::*which, int64_t batch) {
  std::vector<double> joined;
  for (int64_t row = 0; row < batch; ++row) {
    for (const Block& block : blocks) {
      const std::vector<double> part = ToDoubleValues((block.*which).Slice(0, row, 1));
      joined.insert(joined.end(), part.begin(), part.end());
    }
  }
  return joined;
}

// The oracle's results for a case.
struct ExpectedAttention {
  ExpectedAttention(const AttentionCase& c, const KernelRun& run);
  std::vector<double> q, k, v;
  OracleOutputs outputs;
  OracleGradients gradients;
};

// `tolerance` is relative to the largest absolute expected value, or to 1 if that is smaller.
void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance,
                const std::string& what);
void ExpectOutputs(const KernelRun& run, const OracleOutputs& expected, double tolerance);
void ExpectGradients(const AttentionCase& c, const KernelRun& run, const OracleGradients& expected,
                     double tolerance);
// The outputs, statistics and gradients of a case with one key block, by the kernels.
std::vector<double> ResultsOf(const AttentionCase& c);
// Compares forward and backward of a case with the oracle. `what` names the case in failures.
void CheckAttention(const AttentionCase& c, const std::string& what, double tolerance = 1e-5);

}  // namespace weft::testing
