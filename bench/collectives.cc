// weft's collectives and Open MPI's, in the same processes, for bench/run.py to measure in turns.
//
// Requests: "run op=<all_gather|reduce_scatter|all_reduce|all_to_all|stream> way=<...> bytes=<...>
// repeats=<...>". A repeat's time is this rank's, from a barrier to the end of the collective's use of its
// input: for weft that is *released*, so that the input may be written again, as after an MPI call. Bytes are
// those of the whole: the gathered buffer, the unreduced one, what a rank exchanges or streams.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/collective_case.h"
#include "bench/contestant.h"
#include "bench/versus.h"

namespace weft::bench {
namespace {

Reply Run(CollectiveArena& arena, CollectiveCase& collective, const std::string& way, int repeats) {
  const std::function<void()>& run = collective.Way(way);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    arena.mpi.Barrier();
    seconds.push_back(SecondsOf(run));
  }
  return {{"seconds", seconds}};
}

}  // namespace
}  // namespace weft::bench

int main() {
  using namespace weft::bench;
  CollectiveArena arena;
  std::unique_ptr<CollectiveCase> current;  // One at a time: they are large.
  Serve(arena.bootstrap->rank(), {{"run", [&](const Request& request) {
                                     const std::string op = StringOf(request, "op");
                                     const int bytes = IntegerOf(request, "bytes");
                                     if (!current || !current->Is(op, bytes)) {
                                       current.reset();
                                       current = MakeCase(arena, op, bytes);
                                     }
                                     return Run(arena, *current, StringOf(request, "way"),
                                                IntegerOf(request, "repeats"));
                                   }}});
  return 0;
}
