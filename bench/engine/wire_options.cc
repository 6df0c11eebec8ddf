#include "bench/engine/wire_options.h"

#include <cstdlib>

#include <CLI/CLI.hpp>

namespace weft::bench {

WireOptions ParseWireOptions(int argc, char** argv) {
  WireOptions options;
  CLI::App app("Collectives over the links between nodes, beside plain MPI messages.");
  app.add_flag("--apart", options.apart, "Every process counts as a node");
  app.add_flag("!--no-sockets", options.sockets, "Leave out the engine over TCP sockets");
  app.add_flag("!--no-open-mpi", options.open_mpi, "Leave out Open MPI's collectives");
  app.add_flag("--in-place", options.in_place, "An engine whose input of a gather lies in its output");
  app.add_option("--rounds", options.rounds, "Measured rounds");
  app.add_option("--mib", options.mib, "Size of the whole buffer");
  app.add_option("--gigabits", options.gigabits, "Rate of the cable of a host");
  app.add_option("--slices", options.slices_kib, "Slices of further engines over MPI, in KiB")
      ->delimiter(',');
  app.add_option("--runs", options.runs_kib, "Longest messages of further engines over MPI, in KiB")
      ->delimiter(',');
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

}  // namespace weft::bench
