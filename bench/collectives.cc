// Contestant of bench/run.py: weft's collectives and Open MPI's, in the same processes.
//
// Requests: "run op=<all_gather|reduce_scatter|all_reduce|all_to_all|stream> variant=<...> bytes=<...>
// repeats=<...>". The time of a repeat runs on this rank from a barrier until the input may be written again.
// For weft that is *released*, for MPI the end of the call. `bytes` is the size of the whole: the gathered
// buffer, the unreduced buffer, or the buffer that a rank exchanges or streams.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/collective_case.h"
#include "bench/contestant.h"
#include "bench/host_barrier.h"
#include "bench/versus.h"

namespace weft::bench {
namespace {

Reply Run(const std::function<void()>& barrier, CollectiveCase& collective, const std::string& variant,
          int repeats) {
  const std::function<void()>& run = collective.Variant(variant);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    barrier();
    seconds.push_back(SecondsOf(run));
  }
  return {{"seconds", seconds}};
}

}  // namespace
}  // namespace weft::bench

int main() {
  using namespace weft::bench;
  CollectiveArena arena;
  std::optional<HostBarrier> on_host;
  if (arena.bootstrap->node_map().node_count() == 1) on_host.emplace(arena.ranks());
  const auto barrier = [&] { return on_host ? on_host->Await() : arena.mpi.Barrier(); };
  std::unique_ptr<CollectiveCase> current;  // At most one, because buffers are large.
  Serve(arena.bootstrap->rank(), {{"run", [&](const Request& request) {
                                     const std::string op = StringOf(request, "op");
                                     const int bytes = IntegerOf(request, "bytes");
                                     if (!current || !current->Matches(op, bytes)) {
                                       current.reset();
                                       current = MakeCase(arena, op, bytes);
                                     }
                                     return Run(barrier, *current, StringOf(request, "variant"),
                                                IntegerOf(request, "repeats"));
                                   }}});
  return 0;
}
