#include "bench/ratio_reporter.h"

#include <algorithm>
#include <cstdio>
#include <string>

namespace weft::bench {

bool RatioReporter::ReportContext(const Context& context) {
  PrintBasicContext(&GetErrorStream(), context);
  std::printf("Medians of interleaved repeats, time of the slowest rank.\n\n%-28s %12s %12s %12s %12s\n",
              "collective", "weft us", "MPI us", "MPI I* us", "MPI / weft");
  return true;
}

void RatioReporter::ReportRuns(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    if (run.error_occurred) {
      std::printf("%-28s %s\n", run.run_name.function_name.c_str(), run.error_message.c_str());
      continue;
    }
    const double weft = run.counters.at(kWeftCounter);
    const double blocking = run.counters.at(kBlockingCounter);
    const double nonblocking = run.counters.at(kNonblockingCounter);
    std::printf("%-28s %12.1f %12.1f %12.1f %11.2fx\n", run.run_name.function_name.c_str(), weft, blocking,
                nonblocking, std::min(blocking, nonblocking) / weft);
    std::fflush(stdout);
  }
}

void RunOnAllRanks(bool is_first, benchmark::BenchmarkReporter& loud) {
  SilentReporter silent;
  benchmark::RunSpecifiedBenchmarks(is_first ? &loud : &silent);
  benchmark::Shutdown();
}

}  // namespace weft::bench
