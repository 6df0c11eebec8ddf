// What programs of other libraries' collectives have in common: requests, buffers, the check of results.
//
// Requests are those of bench/collectives.cc: "run op=... way=... bytes=... repeats=...".
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace weft::bench {

struct CollectiveCall {
  std::string op, way;
  const float* input;
  float* output;
  int64_t total;  // Elements of the whole: gathered, or unreduced.
};

struct PeerLibrary {
  int rank, ranks;
  std::function<void()> barrier;
  // Blocks until input and output are the caller's again. False: there is no such operation.
  std::function<bool(const CollectiveCall&)> run;
};

// Answers the suite's requests until it hangs up. Ends the process where a result is wrong.
void ServeCollectives(const PeerLibrary& library);

}  // namespace weft::bench
