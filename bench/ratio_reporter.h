// What rank 0 prints while it measures: a line for each benchmark, with its median times and how many times
// faster weft is than the better of its rivals. Other ranks use the silent reporter.
#pragma once

#include <benchmark/benchmark.h>

namespace weft::bench {

// Names of the counters that a benchmark sets, in microseconds.
inline constexpr char kWeftCounter[] = "weft_us";
inline constexpr char kBlockingCounter[] = "mpi_us";
inline constexpr char kNonblockingCounter[] = "mpi_nonblocking_us";

class RatioReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
};

// Other ranks than the first print nothing.
class SilentReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

// Runs what is registered on all ranks alike; the first one prints, by `loud`.
void RunOnAllRanks(bool is_first, benchmark::BenchmarkReporter& loud);

}  // namespace weft::bench
