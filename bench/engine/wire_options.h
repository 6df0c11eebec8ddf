// Flags of weft_bench_wire.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::bench {

struct WireOptions {
  bool apart = false;
  bool sockets = true;
  bool open_mpi = true;
  bool in_place = false;
  int rounds = 11;
  int64_t mib = 64;
  double gigabits = 0;
  std::vector<int64_t> slices_kib;
  std::vector<int64_t> runs_kib;

  int64_t elements() const { return (mib << 20) / static_cast<int64_t>(sizeof(float)); }
};

// Ends the program on --help and on wrong flags.
WireOptions ParseWireOptions(int argc, char** argv);

}  // namespace weft::bench
