#include "src/comm/trees/relay_choice.h"

#include <bit>

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
// From node to node.
constexpr double kHop = 20;

// Bytes a microsecond.
// Rounds bring bytes later: a rank copies them twice, and looks for them with pauses.
constexpr double kRelayedBytes = 360;
// One rank reads the inputs of its node. In a direct exchange, all of them do.
constexpr double kInputBytes = 8000;

}  // namespace

bool RelayedGatherPays(int nodes, int64_t bytes) {
  const int rounds = std::bit_width(static_cast<unsigned>(nodes - 1));
  const double relayed = rounds * (kGatherRound + kHop) + static_cast<double>(bytes) / kRelayedBytes;
  return relayed < (nodes - 1) * kGatherFromNode + kHop;
}

bool RelayedReduceScatterPays(int nodes, int members, int64_t bytes) {
  const auto whole = static_cast<double>(bytes);
  const double relayed = HalvingLevels(nodes) * kHop + MostHalvingExchanges(nodes) * kSumExchange +
                         whole / kRelayedBytes + (members - 1) * whole / kInputBytes;
  return relayed < (nodes - 1) * kSumOfNode + kHop;
}

}  // namespace weft
