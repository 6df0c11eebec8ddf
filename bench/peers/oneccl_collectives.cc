// Contestant of bench/run.py: oneCCL's collectives on host memory. bench/run.py builds it without weft. MPI
// only starts the ranks.
#include <memory>

#include <mpi.h>
#include <oneapi/ccl.hpp>

#include "bench/peers/peer_collectives.h"

namespace weft::bench {
namespace {

ccl::communicator MakeCommunicator(int rank, int ranks) {
  ccl::shared_ptr_class<ccl::kvs> store;
  ccl::kvs::address_type address{};
  if (rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (rank != 0) store = ccl::create_kvs(address);
  return ccl::create_communicator(ranks, rank, store);
}

bool Run(ccl::communicator& communicator, const CollectiveCall& call) {
  const auto total = static_cast<size_t>(call.total);
  const auto ranks = static_cast<size_t>(communicator.size());
  if (call.op == "all_gather") {
    const ccl::vector_class<size_t> counts(ranks, total / ranks);
    ccl::allgatherv(call.input, total / ranks, call.output, counts, communicator).wait();
  } else if (call.op == "reduce_scatter") {
    ccl::reduce_scatter(call.input, call.output, total / ranks, ccl::reduction::sum, communicator).wait();
  } else if (call.op == "all_reduce") {
    ccl::allreduce(call.input, call.output, total, ccl::reduction::sum, communicator).wait();
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
  ccl::communicator communicator = MakeCommunicator(rank, ranks);
  ServeCollectives({.rank = rank, .ranks = ranks, .run = [&](const CollectiveCall& call) {
                      return Run(communicator, call);
                    }});
}

}  // namespace
}  // namespace weft::bench

int main() {
  ccl::init();
  MPI_Init(nullptr, nullptr);
  weft::bench::Main();
  MPI_Finalize();
  return 0;
}
