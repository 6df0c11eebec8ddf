#include "tests/nn/sparse_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/attention_oracle.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

size_t At(int64_t index) { return static_cast<size_t>(index); }

double Dot(const Doubles& a, int64_t a_at, const Doubles& b, int64_t b_at, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += a[At(a_at + i)] * b[At(b_at + i)];
  return sum;
}

void Fill(const TensorView& view, float value) {
  const Tensor values = Tensor::Empty(DType::kF32, view.shape);
  std::fill_n(values.As<float>(), values.elements(), value);
  ASSERT_TRUE(StridedCopy(values.view(), view).ok());
}

// A view with test values; of a larger tensor if `sliced`.
TensorView Make(const SparseCase& c, DType dtype, const Shape& shape, int64_t salt,
                std::vector<Tensor>& keep) {
  if (!c.sliced) {
    keep.push_back(TestTensor(dtype, shape, salt));
    return keep.back().view();
  }
  Shape wide = shape;
  for (size_t dim = 1; dim < wide.size(); ++dim) wide[dim] += 2;
  keep.push_back(TestTensor(dtype, wide, salt));
  TensorView view = keep.back().view();
  for (size_t dim = 1; dim < wide.size(); ++dim) view = view.Slice(static_cast<int>(dim), 1, shape[dim]);
  return view;
}

// Test values, rounded to integers of at most 2.
TensorView MakeIndex(const SparseCase& c, const Shape& shape, int64_t salt, std::vector<Tensor>& keep) {
  const TensorView view = Make(c, c.dtype, shape, salt, keep);
  if (!c.exact_scores) return view;
  const Tensor rounded = Tensor::Empty(DType::kF32, shape);
  EXPECT_TRUE(StridedCopy(view, rounded.view()).ok());
  for (int64_t i = 0; i < rounded.elements(); ++i) {
    rounded.As<float>()[i] = std::nearbyint(1.5F * rounded.As<float>()[i]);
  }
  EXPECT_TRUE(StridedCopy(rounded.view(), view).ok());
  return view;
}

TensorView MakeNan(const SparseCase& c, const Shape& shape, std::vector<Tensor>& keep) {
  const TensorView view = Make(c, DType::kF32, shape, 1, keep);
  Fill(view, std::numeric_limits<float>::quiet_NaN());
  return view;
}

}  // namespace

int64_t SparseCase::keys() const {
  int64_t count = 0;
  for (const TokenRuns& block : key_blocks) count += TokenCount(block);
  return count;
}

SparseOracle::SparseOracle(const SparseCase& c) : c_(c), queries_(TokensOf(c.q_runs)) {
  for (const TokenRuns& block : c.key_blocks) {
    const std::vector<Token> tokens = TokensOf(block);
    keys_.insert(keys_.end(), tokens.begin(), tokens.end());
  }
}

std::vector<SparseOracle::Token> SparseOracle::TokensOf(const TokenRuns& runs) {
  std::vector<Token> tokens;
  for (const TokenRun& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) tokens.push_back({run.document, run.position + i});
  }
  return tokens;
}

SelectedNumbers SparseOracle::VisibleKeys() const {
  SelectedNumbers visible;
  for (int64_t row = 0; row < c_.batch * c_.queries(); ++row) {
    const Token& query = queries_[At(row % c_.queries())];
    std::vector<int64_t>& numbers = visible.emplace_back();
    for (size_t key = 0; key < keys_.size(); ++key) {
      if (OracleIsVisible(c_.mask, query.document, query.position, keys_[key].document,
                          keys_[key].position)) {
        numbers.push_back(static_cast<int64_t>(key));
      }
    }
  }
  return visible;
}

SelectedNumbers SparseOracle::Select(const SparsePoint& point) const {
  SelectedNumbers selected = VisibleKeys();
  for (size_t row = 0; row < selected.size(); ++row) {
    std::vector<std::pair<double, int64_t>> order;
    std::vector<int64_t>& numbers = selected[row];
    const auto batch = static_cast<int64_t>(row) / c_.queries();
    const auto query = static_cast<int64_t>(row) % c_.queries();
    std::sort(numbers.begin(), numbers.end(), [&](int64_t a, int64_t b) {
      const double score_a = IndexScore(point, batch, query, a);
      const double score_b = IndexScore(point, batch, query, b);
      return score_a != score_b ? score_a > score_b : keys_[At(a)].position < keys_[At(b)].position;
    });
    numbers.resize(std::min(numbers.size(), At(c_.top_k)));
    std::sort(numbers.begin(), numbers.end());
  }
  return selected;
}

double SparseOracle::IndexScore(const SparsePoint& point, int64_t batch, int64_t query, int64_t key) const {
  double score = 0.0;
  for (int64_t head = 0; head < c_.index_heads; ++head) {
    const int64_t row = (batch * c_.queries() + query) * c_.index_heads + head;
    const double product = Dot(point.index_q, row * c_.index_dim, point.index_k,
                               (batch * c_.keys() + key) * c_.index_dim, c_.index_dim);
    score += point.weights[At(row)] * std::max(product, 0.0);
  }
  return score;
}

Doubles SparseOracle::Weights(const SparsePoint& point, const std::vector<int64_t>& selected, int64_t batch,
                              int64_t query, int64_t head, double& lse) const {
  Doubles weights;
  const int64_t q_row = (batch * c_.queries() + query) * c_.heads + head;
  const int64_t kv_head = (head + c_.head_offset) / c_.group;
  double sum = 0.0;
  for (const int64_t key : selected) {
    const int64_t k_row = (batch * c_.keys() + key) * c_.kv_heads + kv_head;
    const double score = Dot(point.q, q_row * c_.head_dim, point.k, k_row * c_.head_dim, c_.head_dim);
    weights.push_back(std::exp(static_cast<double>(c_.scale) * score));
    sum += weights.back();
  }
  for (double& weight : weights) weight /= sum;
  lse = std::log(sum);
  return weights;
}

SparseOracle::Outputs SparseOracle::Attend(const SparsePoint& point, const SelectedNumbers& selected) const {
  Outputs outputs = {Doubles(At(c_.batch * c_.queries() * c_.heads * c_.value_dim)),
                     Doubles(At(c_.batch * c_.heads * c_.queries()))};
  for (size_t row = 0; row < selected.size(); ++row) {
    const auto batch = static_cast<int64_t>(row) / c_.queries();
    const auto query = static_cast<int64_t>(row) % c_.queries();
    for (int64_t head = 0; head < c_.heads; ++head) {
      double& lse = outputs.lse[At((batch * c_.heads + head) * c_.queries() + query)];
      const Doubles weights = Weights(point, selected[row], batch, query, head, lse);
      const int64_t kv_head = (head + c_.head_offset) / c_.group;
      for (size_t j = 0; j < weights.size(); ++j) {
        const int64_t v_row = (batch * c_.keys() + selected[row][j]) * c_.kv_heads + kv_head;
        for (int64_t i = 0; i < c_.value_dim; ++i) {
          outputs.out[(row * At(c_.heads) + At(head)) * At(c_.value_dim) + At(i)] +=
              weights[j] * point.v[At(v_row * c_.value_dim + i)];
        }
      }
    }
  }
  return outputs;
}

std::vector<Doubles> SparseOracle::Targets(const SparsePoint& point, const SelectedNumbers& selected) const {
  std::vector<Doubles> targets;
  for (size_t row = 0; row < selected.size(); ++row) {
    Doubles& target = targets.emplace_back(selected[row].size());
    const auto batch = static_cast<int64_t>(row) / c_.queries();
    const auto query = static_cast<int64_t>(row) % c_.queries();
    for (int64_t head = 0; head < c_.heads; ++head) {
      double lse = 0.0;
      const Doubles weights = Weights(point, selected[row], batch, query, head, lse);
      for (size_t j = 0; j < target.size(); ++j) target[j] += weights[j] / static_cast<double>(c_.heads);
    }
  }
  return targets;
}

double SparseOracle::Loss(const SparsePoint& point, const SelectedNumbers& selected,
                          const std::vector<Doubles>& targets) const {
  double loss = 0.0;
  for (size_t row = 0; row < selected.size(); ++row) {
    const auto batch = static_cast<int64_t>(row) / c_.queries();
    const auto query = static_cast<int64_t>(row) % c_.queries();
    Doubles scores;
    double sum = 0.0;
    for (const int64_t key : selected[row]) {
      scores.push_back(IndexScore(point, batch, query, key));
      sum += std::exp(scores.back());
    }
    for (size_t j = 0; j < scores.size(); ++j) {
      loss += targets[row][j] * (std::log(targets[row][j]) - (scores[j] - std::log(sum)));
    }
  }
  return loss;
}

SparseRun::SparseRun(const SparseCase& sparse_case)
    : c(sparse_case), problem{c.mask, c.scale, c.group, c.head_offset} {
  const int64_t queries = c.queries();
  q = Make(c, c.dtype, {c.batch, queries, c.heads, c.head_dim}, 1, keep);
  dout = Make(c, c.dtype, {c.batch, queries, c.heads, c.value_dim}, 2, keep);
  out = MakeNan(c, dout.shape, keep);
  dq = MakeNan(c, q.shape, keep);
  index = {MakeIndex(c, {c.batch, queries, c.index_heads, c.index_dim}, 3, keep),
           MakeIndex(c, {c.batch, queries, c.index_heads}, 4, keep)};
  index_dq = MakeNan(c, index.q.shape, keep);
  index_dweights = MakeNan(c, index.weights.shape, keep);
  for (Tensor statistics : {Tensor::Empty(DType::kF32, {c.batch, c.heads, queries}),
                            Tensor::Empty(DType::kF32, {c.batch, c.heads, queries})}) {
    keep.push_back(std::move(statistics));
  }
  lse = keep[keep.size() - 2].view();
  delta = keep[keep.size() - 1].view();
  for (size_t block = 0; block < c.key_blocks.size(); ++block) {
    const int64_t tokens = TokenCount(c.key_blocks[block]);
    const auto salt = static_cast<int64_t>(10 * block);
    const Shape k_shape = {c.batch, tokens, c.kv_heads, c.head_dim};
    const Shape v_shape = {c.batch, tokens, c.kv_heads, c.value_dim};
    keys.push_back({Make(c, c.dtype, k_shape, salt + 5, keep), Make(c, c.dtype, v_shape, salt + 6, keep),
                    &c.key_blocks[block]});
    gradients.push_back({MakeNan(c, k_shape, keep), MakeNan(c, v_shape, keep)});
    index_keys.push_back(MakeIndex(c, {c.batch, tokens, c.index_dim}, salt + 7, keep));
    index_dk.push_back(MakeNan(c, index_keys.back().shape, keep));
  }
}

void SparseRun::Select() { selection = SelectKeys(c.mask, c.top_k, index, c.q_runs, keys, index_keys); }

void SparseRun::Forward() { SparseAttentionForward(problem, q, selection, keys, out, lse); }

void SparseRun::Backward() {
  keep.push_back(Tensor::Empty(DType::kF32, {c.batch, c.queries(), selection.width()}));
  target = keep.back().view();
  AttentionDelta(out, dout, delta);
  SparseAttentionBackward(problem, q, selection, keys, {.lse = lse, .delta = delta, .dout = dout}, dq,
                          gradients, target);
}

double SparseRun::SelectedLoss(float factor) {
  return SelectedIndexerLoss(selection, target, index, keys, index_keys, factor,
                             {index_dq, index_dweights, index_dk});
}

void SparseRun::DenseForward() { AttentionForward(problem, q, c.q_runs, keys, out, lse); }

double SparseRun::DenseLoss(float factor) {
  return DenseIndexerLoss(problem, q, c.q_runs, keys, lse, index, index_keys, factor,
                          {index_dq, index_dweights, index_dk});
}

SparsePoint SparseRun::Point() const {
  std::vector<TensorView> k, v;
  for (const KeyBlock& block : keys) {
    k.push_back(block.k);
    v.push_back(block.v);
  }
  return {ToDoubleValues(q),       JoinedKeys(k, c.batch),          JoinedKeys(v, c.batch),
          ToDoubleValues(index.q), JoinedKeys(index_keys, c.batch), ToDoubleValues(index.weights)};
}

SelectedNumbers SparseRun::Numbers() const {
  SelectedNumbers numbers;
  const int64_t width = selection.width();
  for (int64_t row = 0; row < c.batch * c.queries(); ++row) {
    const int32_t* first = selection.keys.As<int32_t>() + row * width;
    numbers.emplace_back(first, first + selection.counts.As<int32_t>()[row]);
  }
  return numbers;
}

Doubles JoinedKeys(const std::vector<TensorView>& blocks, int64_t batch) {
  Doubles joined;
  for (int64_t row = 0; row < batch; ++row) {
    for (const TensorView& block : blocks) {
      const Doubles part = ToDoubleValues(block.Slice(0, row, 1));
      joined.insert(joined.end(), part.begin(), part.end());
    }
  }
  return joined;
}

}  // namespace weft::testing
