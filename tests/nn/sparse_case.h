// Test case of the sparse attention kernels: one problem for the kernels, and the same as plain loops in
// double.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tests/nn/gradient_check.h"
#include "weft/core/tensor.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

namespace weft::testing {

struct SparseCase {
  AttentionMask mask;
  TokenRuns q_runs;
  std::vector<TokenRuns> key_blocks;
  int64_t top_k = 4;
  int64_t batch = 1, heads = 4, kv_heads = 2, group = 2, head_offset = 0;
  int64_t head_dim = 6, value_dim = 5;
  int64_t index_heads = 3, index_dim = 4;
  DType dtype = DType::kF32;
  float scale = 0.3F;
  // Index inputs are small integers, so that scores are exact, and many are equal.
  bool exact_scores = false;
  // The tensors are slices of larger ones.
  bool sliced = false;

  int64_t queries() const { return TokenCount(q_runs); }
  int64_t keys() const;
};

// The inputs of a case as flat vectors. Keys are those of all blocks, end to end.
struct SparsePoint {
  Doubles q, k, v, index_q, index_k, weights;
};
// The keys of each query: [batch * queries], by ascending number.
using SelectedNumbers = std::vector<std::vector<int64_t>>;

// Plain loops in double.
class SparseOracle {
 public:
  explicit SparseOracle(const SparseCase& c);

  SelectedNumbers VisibleKeys() const;
  // The top_k visible keys of each query.
  SelectedNumbers Select(const SparsePoint& point) const;
  double IndexScore(const SparsePoint& point, int64_t batch, int64_t query, int64_t key) const;
  // out [batch, queries, heads, value_dim], and lse [batch, heads, queries].
  struct Outputs {
    Doubles out, lse;
  };
  Outputs Attend(const SparsePoint& point, const SelectedNumbers& selected) const;
  // The mean over heads of the attention weights, for each query and selected key.
  std::vector<Doubles> Targets(const SparsePoint& point, const SelectedNumbers& selected) const;
  // The sum over queries of KL(target || softmax of index scores).
  double Loss(const SparsePoint& point, const SelectedNumbers& selected,
              const std::vector<Doubles>& targets) const;

 private:
  struct Token {
    int64_t document, position;
  };
  static std::vector<Token> TokensOf(const TokenRuns& runs);
  // Softmax over the selected keys of one head.
  Doubles Weights(const SparsePoint& point, const std::vector<int64_t>& selected, int64_t batch,
                  int64_t query, int64_t head, double& lse) const;

  const SparseCase& c_;
  std::vector<Token> queries_, keys_;
};

// The kernels' tensors for a case. Targets are filled with NaN first.
struct SparseRun {
  explicit SparseRun(const SparseCase& c);

  void Select();
  void Forward();
  // Also writes `target`.
  void Backward();
  double SelectedLoss(float factor);
  // REQUIRES of DenseLoss: Forward with a selection of all visible keys, or DenseForward.
  void DenseForward();
  double DenseLoss(float factor);

  SparsePoint Point() const;
  SelectedNumbers Numbers() const;

  const SparseCase& c;
  std::vector<Tensor> keep;
  AttentionProblem problem;
  TensorView q, dout, out, dq, lse, delta, target;
  IndexQueries index;
  std::vector<TensorView> index_keys, index_dk;
  TensorView index_dq, index_dweights;
  std::vector<KeyBlock> keys;
  std::vector<KeyGradients> gradients;
  KeySelection selection;
};

// The values of blocks [batch, keys, ...], end to end along the keys.
Doubles JoinedKeys(const std::vector<TensorView>& blocks, int64_t batch);

// For gradients of sparse kernels: all elements are differentiated, with a step so short that hardly any ReLU
// has its corner inside.
inline DifferenceOptions AllDifferences(double tolerance) {
  return {.tolerance = tolerance, .step = 1e-6, .elements = std::numeric_limits<int64_t>::max()};
}

}  // namespace weft::testing
