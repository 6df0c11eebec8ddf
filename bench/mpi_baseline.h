// Open MPI's own collectives on all ranks: what weft's are compared with, in the same processes.
//
// Inputs and outputs are f32 and never the same buffer: out of place is where Open MPI chooses its better
// algorithms. A failed call ends the job (MPI_ERRORS_ARE_FATAL), as a comparison with it would mean nothing.
//
// Collective: everything, by all ranks in the same order.
// Lifetime: MPI must be initialised before and finalised after.
#pragma once

#include <cstdint>
#include <memory>

namespace weft::bench {

class MpiBaseline {
 public:
  enum class Style { kBlocking, kNonblocking };  // MPI_Allgather, or MPI_Iallgather and MPI_Wait.

  MpiBaseline();
  ~MpiBaseline();

  // `part` is elements a rank, or between two ranks; `count` elements in all.
  void AllGather(Style style, const float* input, float* output, int64_t part);
  void ReduceScatter(Style style, const float* input, float* output, int64_t part);
  void AllReduce(Style style, const float* input, float* output, int64_t count);
  void AllToAll(Style style, const float* input, float* output, int64_t part);

  // Sends `count` elements to the rank `distance` places on, and receives as many from the one as far back,
  // in messages of which a few are always under way: what the wire can do where those are on other nodes.
  void Stream(const float* input, float* output, int64_t count, int distance);

  void Barrier();
  // The largest of all ranks' `seconds`.
  double Slowest(double seconds);
  bool TrueEverywhere(bool value);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::bench
