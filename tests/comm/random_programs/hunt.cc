// weft_hunt: simulates random programs of collectives for a range of seeds, and prints the seeds that fail.
//
//   weft_hunt --seeds 0:1000           runs a range of seeds
//   weft_hunt --seeds 17:18            repeats one schedule
#include <chrono>
#include <cstdio>

#include <CLI/CLI.hpp>

#include "tests/comm/random_programs/random_program.h"
#include "weft/core/status.h"

int main(int argc, char** argv) {
  CLI::App app("Simulates random programs of collectives and checks every result.");
  std::string seeds = "0:1000";
  int max_ranks = 16;
  app.add_option("--seeds", seeds, "Range of seeds FIRST:END; END is excluded")
      ->check([](const std::string& text) {
        unsigned long long first = 0, end = 0;
        char rest = 0;
        const bool good = std::sscanf(text.c_str(), "%llu:%llu%c", &first, &end, &rest) == 2 && first < end;
        return good ? std::string() : "must be FIRST:END with FIRST below END, such as 0:1000";
      });
  app.add_option("--max-ranks", max_ranks, "Largest number of ranks of a schedule")
      ->check(CLI::Range(2, 1024));
  CLI11_PARSE(app, argc, argv);
  unsigned long long first = 0, end = 0;
  std::sscanf(seeds.c_str(), "%llu:%llu", &first, &end);

  long long operations = 0, ranks = 0, failures = 0, events = 0;
  double virtual_s = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t seed = first; seed < end; ++seed) {
    const weft::testing::Program program = weft::testing::DrawProgram(seed, max_ranks);
    const weft::testing::ScheduleReport report =
        weft::testing::RunSchedule(program, weft::testing::DrawMachine(seed));
    operations += report.operations;
    ranks += program.nodes.size();
    events += report.simulation.events;
    virtual_s += static_cast<double>(report.simulation.virtual_ns) * 1e-9;
    if (report.status().ok()) continue;
    ++failures;
    std::printf("%s: %s\n  repeat with: %s --seeds %llu:%llu --max-ranks %d\n", program.ToString().c_str(),
                report.status().ToString().c_str(), argv[0], static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(seed + 1), max_ranks);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "%llu schedules, %lld ranks, %lld operations, %lld events, %.1f virtual seconds in %.1f seconds, %lld "
      "failures\n",
      end - first, ranks, operations, events, virtual_s, seconds, failures);
  return failures == 0 ? 0 : 1;
}
