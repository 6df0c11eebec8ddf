// Contestant of bench/run.py: the collectives of an MPI library. bench/run.py builds it against that library,
// without weft.
#include <mpi.h>

#include "bench/mpi_baseline.h"
#include "bench/peers/peer_collectives.h"

namespace weft::bench {
namespace {

bool Run(MpiBaseline& mpi, int ranks, const CollectiveCall& call) {
  const auto style =
      call.variant == "blocking" ? MpiBaseline::Style::kBlocking : MpiBaseline::Style::kNonblocking;
  if (call.op == "all_gather") {
    mpi.AllGather(style, call.input, call.output, call.total / ranks);
  } else if (call.op == "reduce_scatter") {
    mpi.ReduceScatter(style, call.input, call.output, call.total / ranks);
  } else if (call.op == "all_reduce") {
    mpi.AllReduce(style, call.input, call.output, call.total);
  } else {
    return false;
  }
  return true;
}

void Main() {
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MpiBaseline mpi;
  ServeCollectives({.rank = rank, .ranks = ranks, .run = [&](const CollectiveCall& call) {
                      return Run(mpi, ranks, call);
                    }});
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  weft::bench::Main();
  MPI_Finalize();
  return 0;
}
