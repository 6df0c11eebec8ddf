// Timing helpers, and the interleaved comparison of weft with Eigen.
#pragma once

#include <chrono>
#include <vector>

#include <benchmark/benchmark.h>

#include "weft/core/median.h"

namespace weft::bench {

template <typename Run>
double SecondsOf(const Run& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Runs both once per iteration, so that disturbances affect both. Reports the medians as GFLOP/s, and the
// ratio of Eigen's time to weft's.
template <typename Weft, typename Eigen>
void MeasureInterleaved(benchmark::State& state, double flops, const Weft& weft, const Eigen& eigen) {
  weft();  // Warm-up: allocations and compiled kernels of the shape.
  eigen();
  std::vector<double> weft_seconds;
  std::vector<double> eigen_seconds;
  for (auto _ : state) {
    weft_seconds.push_back(SecondsOf(weft));
    eigen_seconds.push_back(SecondsOf(eigen));
    state.SetIterationTime(weft_seconds.back());
  }
  const double weft_median = Median(weft_seconds);
  const double eigen_median = Median(eigen_seconds);
  state.counters["weft_gflops"] = flops / weft_median * 1e-9;
  state.counters["eigen_gflops"] = flops / eigen_median * 1e-9;
  state.counters["eigen/weft"] = eigen_median / weft_median;
}

}  // namespace weft::bench
