#include "src/comm/trees/relay_choice.h"

#include <algorithm>
#include <cstdint>

#include "src/comm/trees/halving.h"

namespace weft {
namespace {

// Times are from the tables of docs/engine.md, "Direct or relayed" and "Growth with the number of ranks".
// A direct exchange with one other node: a stream, a message and a credit.
constexpr double kGatherFromNodeUs = 4;
constexpr double kSumOfNodeUs = 3;
// One round of a gather: a stream, a message, a credit and a task.
constexpr double kGatherRoundUs = 25;
// One exchange of a node in a reduce-scatter: the same.
constexpr double kSumExchangeUs = 35;
// A message of a tree. A rank has few of them, and finds one after a pause.
constexpr double kTreeMessageUs = 20;
// Latency from node to node.
constexpr double kHopUs = 20;

// Rounds bring bytes later: a rank copies them twice, and looks for them with pauses.
constexpr double kRelayedBytesPerUs = 360;
// A link of 10 Gbit/s.
constexpr double kLinkBytesPerUs = 1250;
// One rank reads the inputs of its node. In a direct exchange, all of them do.
constexpr double kInputBytesPerUs = 8000;

// A part of a relayed all-reduce. Fewer parts take fewer messages, and bring more bytes one after the other.
constexpr int64_t kLeastPartBytes = 4096;

double DirectGather(int nodes) { return (nodes - 1) * kGatherFromNodeUs + kHopUs; }
double DirectReduceScatter(int nodes) { return (nodes - 1) * kSumOfNodeUs + kHopUs; }

// Rounds beyond log2(owners). In each of them, a node sends or receives as much as in the one before.
int RepeatedRounds(int nodes, int owners) { return HalvingLevels(nodes) - HalvingLevels(owners); }

// The first nodes send the whole buffer in each repeated round.
double RelayedGather(int nodes, int owners, int64_t bytes) {
  const auto whole = static_cast<double>(bytes);
  return HalvingLevels(nodes) * (kGatherRoundUs + kHopUs) + whole / kRelayedBytesPerUs +
         RepeatedRounds(nodes, owners) * whole / kLinkBytesPerUs;
}
// An owner receives a part in each repeated round.
double RelayedReduceScatter(int nodes, int owners, int members, int64_t bytes) {
  const auto whole = static_cast<double>(bytes);
  return HalvingLevels(nodes) * kHopUs + MostHalvingExchanges(nodes, owners) * kSumExchangeUs +
         whole / kRelayedBytesPerUs + RepeatedRounds(nodes, owners) * whole / owners / kLinkBytesPerUs +
         (members - 1) * whole / kInputBytesPerUs;
}

double RelayedAllReduce(int nodes, int owners, int members, int64_t bytes) {
  return RelayedReduceScatter(nodes, owners, members, bytes) + RelayedGather(nodes, owners, bytes);
}

}  // namespace

bool RelayedGatherPays(int nodes, int64_t bytes) {
  return RelayedGather(nodes, nodes, bytes) < DirectGather(nodes);
}

bool RelayedReduceScatterPays(int nodes, int members, int64_t bytes) {
  return RelayedReduceScatter(nodes, nodes, members, bytes) < DirectReduceScatter(nodes);
}

bool RelayedAllReducePays(int nodes, int members, int64_t bytes) {
  return RelayedAllReduce(nodes, OwnersOfAllReduce(nodes, bytes), members, bytes) <
         DirectReduceScatter(nodes) + DirectGather(nodes);
}

int OwnersOfAllReduce(int nodes, int64_t bytes) {
  const int64_t most = std::clamp<int64_t>(bytes / kLeastPartBytes, 1, nodes);
  int best = 1;
  for (int owners = 2; owners <= most; owners *= 2) {
    if (RelayedAllReduce(nodes, owners, 1, bytes) <= RelayedAllReduce(nodes, best, 1, bytes)) best = owners;
  }
  return best;
}

bool TreePays(int nodes) {
  return 2 * HalvingLevels(nodes) * (kTreeMessageUs + kHopUs) <
         DirectReduceScatter(nodes) + DirectGather(nodes);
}

}  // namespace weft
