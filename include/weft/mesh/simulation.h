// Ranks on virtual time: hundreds of them in one process, one thread, every interleaving drawn from a seed.
//
// Each rank runs as fibres, of which exactly one runs at a time; whatever waits or takes time lets another
// run. A model of the machine says how long things take, and the seed varies every delay, so that a seed is a
// schedule: the same seed gives the same run, to the nanosecond.
//
//   SimReport report = RunSimulatedRanks(nodes, options, [](Bootstrap& bootstrap) { …; return status; });
//
// What differs from a real machine is on the side of what a protocol may not rely on:
//   - a flag of a peer is seen late (all flags of one writer in their order);
//   - pulled data is read at some moment between the start and the end of a copy, and so is what is sent;
//   - memory that a pool takes back can be filled with NaN (NodeHeap::Options::poison_released);
//   - messages of different pairs of ranks overtake each other;
//   - a rank may be slow, or die: it stops at some moment, and nothing that it sent and was not under way
//     arrives.
//
// Thread safety: RunSimulatedRanks may run on several threads at once; everything inside one simulation is
// single-threaded. Code on fibres must not block its thread (mutexes that are held across a wait, sleeps),
// and has kFibreStackBytes of stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

// The machine. Times in nanoseconds, speeds in bytes a nanosecond (GB/s). Every delay is drawn evenly from
// [1, 1 + jitter] times its figure.
struct SimOptions {
  uint64_t seed = 0;
  double jitter = 3.0;
  int64_t poll_ns = 500;      // One look of a polling loop.
  int64_t wake_ns = 5'000;    // Until a sleeper runs again.
  int64_t flag_ns = 200;      // Until a peer of the node sees a flag.
  double memory_speed = 8.0;  // Of one rank's copies.
  int64_t wire_latency_ns = 20'000;
  double wire_speed = 1.25;  // Of a node, each direction: 10 Gbit/s.

  struct SlowRank {
    int rank;
    double factor;  // Everything that this rank does takes so many times longer.
  };
  std::optional<SlowRank> slow = std::nullopt;
  struct Death {
    int rank;
    int64_t at_ns;
  };
  std::optional<Death> death = std::nullopt;

  static constexpr size_t kFibreStackBytes = size_t{256} * 1024;
};

struct SimReport {
  std::vector<absl::Status> outcomes;  // By rank: what its body returned; kUnavailable if it died.
  int64_t virtual_ns = 0;              // When the last rank ended.
  int64_t events = 0;                  // Steps of the simulation.
  int64_t messages = 0;                // Data messages between nodes.
  uint64_t fingerprint = 0;            // Hash of all event times: equal for equal runs.

  // OK, or the first error by rank.
  absl::Status status() const;
};

// Runs `body` for every rank of `nodes` until all have ended.
SimReport RunSimulatedRanks(const NodeMap& nodes, const SimOptions& options,
                            absl::FunctionRef<absl::Status(Bootstrap&)> body);

// The simulation as its links see it: through Runtime::simulation().
class Simulation {
 public:
  virtual ~Simulation() = default;
  virtual int64_t NowNs() const = 0;
  // `ns` with jitter, as long as it takes rank `rank`.
  virtual int64_t Delay(int rank, int64_t ns) = 0;
  virtual const SimOptions& options() const = 0;
  // Runs `action` at that time, outside any fibre. It must not wait.
  virtual void At(int64_t time_ns, std::function<void()> action) = 0;
};

}  // namespace weft
