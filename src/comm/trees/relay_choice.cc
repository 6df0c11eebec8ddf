#include "src/comm/trees/relay_choice.h"

#include <bit>

#include "src/comm/trees/halving.h"

namespace weft {
namespace {

// Times are in units of the CPU time that a message, its credit and its stream take: about 4 us, see
// docs/engine.md.

// Bytes that a link of 10 Gbit/s carries in that time.
constexpr double kBytesOfMessage = 4096;
// Bytes that rounds bring later by that time: a rank copies them twice, and looks for them with pauses.
constexpr double kCopiesOfMessage = 2 * kBytesOfMessage;
// Time from node to node, without the CPU time: 20 us.
constexpr double kHop = 5;

}  // namespace

bool RelayedGatherPays(int nodes, int64_t bytes) {
  if (bytes > kMaxRelayedBytes) return false;
  const int rounds = std::bit_width(static_cast<unsigned>(nodes - 1));
  const double copies = static_cast<double>(bytes) / kCopiesOfMessage;
  return rounds * (1 + kHop) + copies < nodes - 1 + kHop;
}

bool RelayedReduceScatterPays(int nodes, int64_t bytes, int64_t sum_bytes) {
  if (sum_bytes > kMaxRelayedBytes) return false;
  const double copies = static_cast<double>(sum_bytes) / kCopiesOfMessage;
  const double more_bytes = static_cast<double>(sum_bytes - bytes) / kBytesOfMessage;
  const double relayed = HalvingLevels(nodes) * kHop + MostHalvingExchanges(nodes) + copies + more_bytes;
  return relayed < nodes - 1 + kHop;
}

}  // namespace weft
