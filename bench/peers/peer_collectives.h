// Common part of the contestants for other libraries: requests, buffers, and the check of results.
//
// Requests are those of bench/collectives.cc: "run op=... variant=... bytes=... repeats=...".
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace weft::bench {

struct CollectiveCall {
  std::string op, variant;
  const float* input;
  float* output;
  int64_t total;  // Elements of the gathered or unreduced buffer.
};

struct PeerLibrary {
  int rank, ranks;
  // Blocks until input and output may be written again. Returns false if the operation is unknown.
  std::function<bool(const CollectiveCall&)> run;
};

// Answers requests until the suite closes the connection. Checks the result of each variant once for each
// operation and size that follow one another.
// Errors: a wrong result or an unknown operation ends the process.
void ServeCollectives(const PeerLibrary& library);

}  // namespace weft::bench
