#include "src/comm/trees/relay_choice.h"

#include <bit>

namespace weft {
namespace {

// Times are in units of the CPU time that a message, its credit and its stream take: about 4 us, see
// docs/engine.md.

// Bytes that a link of 10 Gbit/s carries in that time. A faster link carries more, which favors rounds.
constexpr double kBytesOfMessage = 4096;
// Bytes that a rank copies twice in that time.
constexpr double kCopiesOfMessage = 4 * kBytesOfMessage;
// Time from node to node, without the CPU time.
constexpr double kHop = 2;

}  // namespace

int RelayRoundCount(int nodes) { return std::bit_width(static_cast<unsigned>(nodes - 1)); }

bool RelayedGatherPays(int nodes, int64_t bytes) {
  if (bytes > kMaxRelayedBytes) return false;
  const double relayed = RelayRoundCount(nodes) * (1 + kHop) + static_cast<double>(bytes) / kCopiesOfMessage;
  return relayed < nodes - 1 + kHop;
}

bool RelayedReduceScatterPays(int nodes, int subtrees, int64_t bytes) {
  if (bytes > kMaxRelayedBytes) return false;
  const double levels = RelayRoundCount(nodes);
  const double sums = levels * subtrees / nodes;  // That a node receives one after the other.
  const double relayed = (levels + sums) * (1 + kHop) + sums * static_cast<double>(bytes) / kBytesOfMessage;
  return relayed < nodes - 1 + kHop;
}

}  // namespace weft
