// MPI's collectives on all ranks: the baseline for weft's collectives, in the same processes.
//
// Inputs and outputs are f32 and never the same buffer, because Open MPI selects its better algorithms out of
// place.
//
// Collective: every function, by all ranks in the same order.
// Lifetime: MPI must be initialized before construction and finalized after destruction.
// Errors: a failed call ends the job (MPI_ERRORS_ARE_FATAL).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace weft::bench {

// From now on, MPI_Comm_split_type makes each process of this program a node of its own. weft then sends all
// bytes through MPI's transport, which within a host is shared memory.
void CountRanksAsNodes();

class MpiBaseline {
 public:
  enum class Style { kBlocking, kNonblocking };  // MPI_Allgather, or MPI_Iallgather and MPI_Wait.

  MpiBaseline();
  ~MpiBaseline();

  // `part`: elements per rank, or per pair of ranks. `count`: elements in total.
  void AllGather(Style style, const float* input, float* output, int64_t part);
  void ReduceScatter(Style style, const float* input, float* output, int64_t part);
  void AllReduce(Style style, const float* input, float* output, int64_t count);
  void AllToAll(Style style, const float* input, float* output, int64_t part);

  // Sends `count` elements to the rank `distance` above this one and receives as many from the rank
  // `distance` below, modulo the number of ranks. A few messages are always in flight. If these ranks are on
  // other nodes, the stream measures the wire. Calls `arrived(begin, end)` for each message once the elements
  // [begin, end) of `output` have been received, while later messages are in flight.
  void Stream(const float* input, float* output, int64_t count, int distance,
              const std::function<void(int64_t begin, int64_t end)>& arrived);

  void Barrier();
  // The maximum of `seconds` over all ranks.
  double Slowest(double seconds);
  bool TrueEverywhere(bool value);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::bench
