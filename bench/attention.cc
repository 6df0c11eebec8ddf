// Benchmark of causal attention, forward and backward, against a plain version in Eigen. That version handles
// one head at a time and computes the whole [tokens, tokens] score matrix. One thread, heads of 64. GFLOP/s
// count the work that causal attention needs: half of the score matrix.
//
//   build/release/bench/weft_bench_attention [--benchmark_filter=…]
//
// Section `kernels` of bench/run.py compares it with PyTorch's.
#include <cmath>

#include <Eigen/Core>
#include <benchmark/benchmark.h>

#include "bench/versus.h"
#include "weft/core/parallel.h"
#include "weft/core/tensor.h"
#include "weft/nn/attention_kernel.h"

namespace weft::bench {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Head = Eigen::Map<Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

constexpr int64_t kHeads = 4;
constexpr int64_t kHeadDim = 64;

struct Problem {
  explicit Problem(int64_t tokens) : seq(tokens), runs(WholeSequence(tokens)) {
    for (Tensor* tensor : {&q, &k, &v, &dout, &out, &dq, &dk, &dv}) {
      *tensor = Tensor::Empty(DType::kF32, {1, seq, kHeads, kHeadDim});
      for (int64_t i = 0; i < tensor->elements(); ++i)
        tensor->As<float>()[i] = std::sin(static_cast<float>(i));
    }
    lse = Tensor::Empty(DType::kF32, {1, kHeads, seq});
    delta = Tensor::Empty(DType::kF32, {1, kHeads, seq});
  }
  KeyBlock keys() const { return {k.view(), v.view(), &runs}; }

  int64_t seq;
  TokenRuns runs;
  AttentionProblem problem = {{}, DefaultScale(kHeadDim), 1, 0};
  Tensor q, k, v, dout, out, lse, delta, dq, dk, dv;
};

void WeftForward(const Problem& p) {
  AttentionForward(p.problem, p.q.view(), p.runs, {p.keys()}, p.out.view(), p.lse.view());
}

void WeftBackward(const Problem& p) {
  AttentionDelta(p.out.view(), p.dout.view(), p.delta.view());
  AttentionBackward(p.problem, p.q.view(), p.runs, {p.keys()},
                    {.lse = p.lse.view(), .delta = p.delta.view(), .dout = p.dout.view()},
                    {.dq = p.dq.view(), .keys = {{p.dk.view(), p.dv.view()}}});
}

Head HeadOf(const Problem& a, const Tensor& tensor, int64_t head) {
  return {tensor.As<float>() + head * kHeadDim, a.seq, kHeadDim, Eigen::OuterStride<>(kHeads * kHeadDim)};
}

// softmax(Q K^T / sqrt(head_dim)) of one head, with the causal mask.
Matrix Weights(const Problem& a, int64_t head) {
  Matrix scores = HeadOf(a, a.q, head) * HeadOf(a, a.k, head).transpose();
  scores *= 1.0F / std::sqrt(static_cast<float>(kHeadDim));
  for (int64_t row = 0; row < scores.rows(); ++row) {
    auto seen = scores.row(row).head(row + 1).array();
    seen = (seen - seen.maxCoeff()).exp();
    seen /= seen.sum();
    scores.row(row).tail(scores.cols() - row - 1).setZero();
  }
  return scores;
}

void EigenForward(const Problem& a) {
  for (int64_t head = 0; head < kHeads; ++head) {
    HeadOf(a, a.out, head).noalias() = Weights(a, head) * HeadOf(a, a.v, head);
  }
}

void EigenBackward(const Problem& a) {
  for (int64_t head = 0; head < kHeads; ++head) {
    const Matrix weights = Weights(a, head);
    const Head dout = HeadOf(a, a.dout, head);
    HeadOf(a, a.dv, head).noalias() = weights.transpose() * dout;
    Matrix gradient = dout * HeadOf(a, a.v, head).transpose();
    const Eigen::VectorXf delta = dout.cwiseProduct(HeadOf(a, a.out, head)).rowwise().sum();
    gradient = weights.cwiseProduct(gradient.colwise() - delta) / std::sqrt(static_cast<float>(kHeadDim));
    HeadOf(a, a.dq, head).noalias() = gradient * HeadOf(a, a.k, head);
    HeadOf(a, a.dk, head).noalias() = gradient.transpose() * HeadOf(a, a.q, head);
  }
}

// Floating-point operations of `products` matrix products over the lower half of the scores.
double Flops(int64_t seq, double products) {
  return products * static_cast<double>(seq) * static_cast<double>(seq) * kHeadDim * kHeads;
}

void Forward(benchmark::State& state) {
  SetThreadCount(1);
  const Problem a(state.range(0));
  MeasureInterleaved(
      state, Flops(state.range(0), 2), [&] { WeftForward(a); }, [&] { EigenForward(a); });
}

void Backward(benchmark::State& state) {
  SetThreadCount(1);
  const Problem a(state.range(0));
  WeftForward(a);
  MeasureInterleaved(
      state, Flops(state.range(0), 5), [&] { WeftBackward(a); }, [&] { EigenBackward(a); });
}

BENCHMARK(Forward)->Arg(128)->Arg(512)->Arg(2048)->Arg(4096)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(Backward)->Arg(128)->Arg(512)->Arg(2048)->Arg(4096)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace weft::bench

BENCHMARK_MAIN();
