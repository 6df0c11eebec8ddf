// Open MPI's own collectives on all ranks: what weft's are compared with, and the clock that both are held
// against.
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

  // `part` is elements a rank, `count` elements in all.
  void AllGather(Style style, const float* input, float* output, int64_t part);
  void ReduceScatter(Style style, const float* input, float* output, int64_t part);
  void AllReduce(Style style, const float* input, float* output, int64_t count);

  void Barrier();
  // The largest of all ranks' `seconds`.
  double Slowest(double seconds);
  bool TrueEverywhere(bool value);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::bench
