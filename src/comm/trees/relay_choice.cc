#include "src/comm/trees/relay_choice.h"

#include <algorithm>
#include <cstdint>

#include "src/comm/trees/halving.h"

namespace weft {
namespace {

// Microseconds, from the tables of docs/engine.md, "Direct or relayed" and "Growth with the number of ranks".
// A direct exchange, for each other node: stream, message and credit.
constexpr double kGatherFromNode = 4;
constexpr double kSumOfNode = 3;
// A round: the same, and a task; of a sum, for each exchange of a node.
constexpr double kGatherRound = 25;
constexpr double kSumExchange = 35;
// A message of a tree. A rank has few of them, and finds one after a pause.
constexpr double kTreeMessage = 20;
// From node to node.
constexpr double kHop = 20;

// Bytes a microsecond.
// Rounds bring bytes later: a rank copies them twice, and looks for them with pauses.
constexpr double kRelayedBytes = 360;
// A link of 10 Gbit/s.
constexpr double kLinkBytes = 1250;
// One rank reads the inputs of its node. In a direct exchange, all of them do.
constexpr double kInputBytes = 8000;

// A part of a relayed all-reduce. Fewer parts take fewer messages, and bring more bytes one after the other.
constexpr int64_t kLeastPartBytes = 4096;

double DirectGather(int nodes) { return (nodes - 1) * kGatherFromNode + kHop; }
double DirectReduceScatter(int nodes) { return (nodes - 1) * kSumOfNode + kHop; }

// Rounds beyond log2(owners). In each of them, a node sends or receives as much as in the one before.
int RepeatedRounds(int nodes, int owners) { return HalvingLevels(nodes) - HalvingLevels(owners); }

// The first nodes send the whole buffer in each repeated round.
double RelayedGather(int nodes, int owners, int64_t bytes) {
  const auto whole = static_cast<double>(bytes);
  return HalvingLevels(nodes) * (kGatherRound + kHop) + whole / kRelayedBytes +
         RepeatedRounds(nodes, owners) * whole / kLinkBytes;
}
// An owner receives a part in each repeated round.
double RelayedReduceScatter(int nodes, int owners, int members, int64_t bytes) {
  const auto whole = static_cast<double>(bytes);
  return HalvingLevels(nodes) * kHop + MostHalvingExchanges(nodes, owners) * kSumExchange +
         whole / kRelayedBytes + RepeatedRounds(nodes, owners) * whole / owners / kLinkBytes +
         (members - 1) * whole / kInputBytes;
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
  return 2 * HalvingLevels(nodes) * (kTreeMessage + kHop) < DirectReduceScatter(nodes) + DirectGather(nodes);
}

}  // namespace weft
