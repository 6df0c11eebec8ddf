// Benchmark of sparse attention against dense attention: forward and backward of one layer's attention.
// Sparse attention includes the selection of keys, and the indexer's loss with its gradients. One thread,
// f32, 8 heads of 64 with 2 kv heads, 4 index heads of 32, top-k 512. Both run once per iteration, so that
// disturbances affect both. Prints the ratio of the times, the times of the parts of sparse attention, and
// the memory that the selection keeps until backward.
//
//   build/release/bench/weft_bench_sparse_attention [--benchmark_filter=…]
#include <cmath>
#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/versus.h"
#include "weft/core/parallel.h"
#include "weft/core/tensor.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

namespace weft::bench {
namespace {

constexpr int64_t kHeads = 8;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 64;
constexpr int64_t kIndexHeads = 4;
constexpr int64_t kIndexDim = 32;
constexpr int64_t kTopK = 512;

// Values without order, so that the selected keys lie anywhere.
Tensor Values(const Shape& shape, uint32_t seed) {
  Tensor tensor = Tensor::Empty(DType::kF32, shape);
  uint32_t state = seed;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    state = state * 1664525U + 1013904223U;
    tensor.As<float>()[i] = static_cast<float>(state >> 8) * 0x1p-23F - 1.0F;
  }
  return tensor;
}

Tensor Results(const Shape& shape) { return Tensor::Empty(DType::kF32, shape); }

struct Problem {
  explicit Problem(int64_t tokens)
      : runs(WholeSequence(tokens)),
        q(Values({1, tokens, kHeads, kHeadDim}, 1)),
        k(Values({1, tokens, kKvHeads, kHeadDim}, 2)),
        v(Values({1, tokens, kKvHeads, kHeadDim}, 3)),
        dout(Values(q.shape(), 4)),
        index_q(Values({1, tokens, kIndexHeads, kIndexDim}, 5)),
        index_k(Values({1, tokens, kIndexDim}, 6)),
        index_weights(Values({1, tokens, kIndexHeads}, 7)),
        out(Results(q.shape())),
        lse(Results({1, kHeads, tokens})),
        delta(Results(lse.shape())),
        dq(Results(q.shape())),
        dk(Results(k.shape())),
        dv(Results(v.shape())),
        index_dq(Results(index_q.shape())),
        index_dk(Results(index_k.shape())),
        index_dweights(Results(index_weights.shape())) {}
  KeyBlock keys() const { return {k.view(), v.view(), &runs}; }
  AttentionBackwardInputs backward_inputs() const {
    return {.lse = lse.view(), .delta = delta.view(), .dout = dout.view()};
  }
  KeyGradients key_gradients() const { return {dk.view(), dv.view()}; }

  TokenRuns runs;
  AttentionProblem problem = {{}, DefaultScale(kHeadDim), kHeads / kKvHeads, 0};
  Tensor q, k, v, dout, index_q, index_k, index_weights;
  Tensor out, lse, delta, dq, dk, dv, index_dq, index_dk, index_dweights;
};

void RunDense(const Problem& p) {
  AttentionForward(p.problem, p.q.view(), p.runs, {p.keys()}, p.out.view(), p.lse.view());
  AttentionDelta(p.out.view(), p.dout.view(), p.delta.view());
  AttentionBackward(p.problem, p.q.view(), p.runs, {p.keys()}, p.backward_inputs(),
                    {.dq = p.dq.view(), .keys = {p.key_gradients()}});
}

// Seconds of the parts of one pass.
struct SparseTimes {
  double select, forward, backward, loss;
  double total() const { return select + forward + backward + loss; }
};

SparseTimes RunSparse(const Problem& p, int64_t* selection_bytes) {
  const IndexQueries index = {p.index_q.view(), p.index_weights.view()};
  const TensorView index_dk = p.index_dk.view();
  const IndexerGradients index_gradients = {p.index_dq.view(), p.index_dweights.view(), {&index_dk, 1}};
  KeySelection selection;
  Tensor target;
  SparseTimes times = {};
  times.select = SecondsOf(
      [&] { selection = SelectKeys(p.problem.mask, kTopK, index, p.runs, {p.keys()}, {p.index_k.view()}); });
  times.forward = SecondsOf([&] {
    SparseAttentionForward(p.problem, p.q.view(), selection, {p.keys()}, p.out.view(), p.lse.view());
  });
  times.backward = SecondsOf([&] {
    AttentionDelta(p.out.view(), p.dout.view(), p.delta.view());
    target = Results(selection.scores.shape());
    SparseAttentionBackward(p.problem, p.q.view(), selection, {p.keys()}, p.backward_inputs(), p.dq.view(),
                            {p.key_gradients()}, target.view());
  });
  times.loss = SecondsOf([&] {
    benchmark::DoNotOptimize(SelectedIndexerLoss(selection, target.view(), index, {p.keys()},
                                                 {p.index_k.view()}, 1.0F, index_gradients));
  });
  *selection_bytes = static_cast<int64_t>(selection.keys.bytes() + selection.scores.bytes());
  return times;
}

void ForwardAndBackward(benchmark::State& state) {
  SetThreadCount(1);
  const Problem p(state.range(0));
  const int64_t inputs_and_results = TensorBytesFromSystem();
  int64_t selection_bytes = 0;
  RunDense(p);  // Warm-up: allocations and compiled kernels of the shape.
  const int64_t with_dense = TensorBytesFromSystem();
  RunSparse(p, &selection_bytes);
  const int64_t with_both = TensorBytesFromSystem();
  std::vector<double> dense, sparse, select, forward, backward, loss;
  while (state.KeepRunning()) {
    dense.push_back(SecondsOf([&] { RunDense(p); }));
    const SparseTimes times = RunSparse(p, &selection_bytes);
    sparse.push_back(times.total());
    select.push_back(times.select);
    forward.push_back(times.forward);
    backward.push_back(times.backward);
    loss.push_back(times.loss);
    state.SetIterationTime(times.total());
  }
  state.counters["dense/sparse"] = Median(dense) / Median(sparse);
  state.counters["dense_s"] = Median(dense);
  state.counters["select_s"] = Median(select);
  state.counters["forward_s"] = Median(forward);
  state.counters["backward_s"] = Median(backward);
  state.counters["loss_s"] = Median(loss);
  state.counters["selection_MB"] = static_cast<double>(selection_bytes) * 1e-6;
  state.counters["dense_MB"] = static_cast<double>(with_dense - inputs_and_results) * 1e-6;
  state.counters["sparse_MB"] = static_cast<double>(with_both - with_dense) * 1e-6;
}

BENCHMARK(ForwardAndBackward)
    ->RangeMultiplier(2)
    ->Range(2048, 32768)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace weft::bench

BENCHMARK_MAIN();
