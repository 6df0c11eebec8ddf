// Contestant of one rank, for tests of the benchmark suite. Its variant `copies` copies the input to the
// output, which is the result of every collective of one rank. `omits` does nothing.
#include <algorithm>

#include "bench/peers/peer_collectives.h"

int main() {
  weft::bench::ServeCollectives({.rank = 0, .ranks = 1, .run = [](const weft::bench::CollectiveCall& call) {
                                   if (call.variant == "copies")
                                     std::copy_n(call.input, call.total, call.output);
                                   return true;
                                 }});
  return 0;
}
