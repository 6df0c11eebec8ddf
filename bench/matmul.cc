// Benchmark of matrix products: weft's matrix library against Eigen in the same run, on one thread. The
// shapes are those of a decoder's projections (y = x W^T, dx = dy W, dW = dy^T x), of its head, and of
// attention's tiles.
//
//   build/release/bench/weft_bench_matmul [--benchmark_filter=…]
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/tensors.h"
#include "bench/versus.h"
#include "src/nn/products/matmul_backend.h"
#include "weft/core/parallel.h"
#include "weft/core/tensor.h"

namespace weft::bench {
namespace {

struct Shape3 {
  const char* name;
  int64_t m, n, k;
  bool transpose_a, transpose_b;
};

constexpr Shape3 kShapes[] = {
    {"forward/tokens:128", 128, 2048, 768, false, true},
    {"forward/tokens:1024", 1024, 2048, 768, false, true},
    {"input_gradient/tokens:128", 128, 768, 2048, false, false},
    {"input_gradient/tokens:1024", 1024, 768, 2048, false, false},
    {"weight_gradient/tokens:128", 2048, 768, 128, true, false},
    {"weight_gradient/tokens:1024", 2048, 768, 1024, true, false},
    {"head/forward", 128, 32000, 768, false, true},
    {"head/input_gradient", 128, 768, 32000, false, false},
    {"head/weight_gradient", 32000, 768, 128, true, false},
    {"attention/scores", 256, 512, 64, false, true},
    {"attention/mix", 256, 64, 512, false, false},
};

void MeasureShape(benchmark::State& state, const Shape3& shape) {
  SetThreadCount(1);
  const Tensor a = Sines(shape.m * shape.k, DType::kF32);
  const Tensor b = Sines(shape.k * shape.n, DType::kF32);
  const Tensor c = Sines(shape.m * shape.n, DType::kF32);
  const Factor factor_a = {a.As<float>(), shape.transpose_a ? shape.m : shape.k, shape.transpose_a};
  const Factor factor_b = {b.As<float>(), shape.transpose_b ? shape.k : shape.n, shape.transpose_b};
  const Product product = {shape.m,  shape.n, shape.k,     DType::kF32,   factor_a,
                           factor_b, 0.0F,    DType::kF32, c.As<float>(), shape.n};
  const double flops =
      2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
  MeasureInterleaved(
      state, flops,
      [&] { Matmul(shape.m, shape.n, shape.k, factor_a, factor_b, 0.0F, c.As<float>(), shape.n); },
      [&] { matmul_eigen::Multiply(product); });
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const auto& shape : weft::bench::kShapes) {
    benchmark::RegisterBenchmark(shape.name, weft::bench::MeasureShape, shape)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
