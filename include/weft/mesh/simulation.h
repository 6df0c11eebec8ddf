// Discrete-event simulation of ranks: thousands of ranks in one thread, on virtual time, with seeded
// schedules.
//
// Each rank runs as one or more fibers. One fiber runs at a time; every wait and every operation that takes
// time switches to another. A model of the machine gives the duration of each operation, and the seed varies
// every delay. A seed therefore determines the schedule: runs with the same seed are identical to the
// nanosecond of virtual time.
//
//   SimReport report = RunSimulatedRanks(nodes, options, [](Bootstrap& bootstrap) { …; return status; });
//
// The simulation is adversarial in ways that a correct protocol must tolerate:
//   - A rank sees a peer's flags late, but sees all flags of one writer in the order of their stores.
//   - A copy, or a send, reads its source at a random moment between its start and its end.
//   - Pools can fill released memory with NaN (NodeHeap::Options::poison_released).
//   - Messages of different pairs of ranks overtake each other.
//   - A rank may be slow.
//   - A rank may die: it stops at a given time, and data messages to or from it that are in flight are lost.
//     Control messages that it has sent still arrive.
//
// Note [Mirrored nodes]
// Problem: many nodes that do the same at the same times repeat each other's events.
// Rule: with SimOptions::mirror_nodes, only the ranks of node 0 run. A message from rank a of node 0 to rank
//   b of node n stands for the message from rank a of node n to rank b of node 0, and is delivered as that
//   one. A gather of blobs returns the blob of rank a of node 0 for rank a of every node.
// Why it suffices: all nodes have equally many consecutive ranks. If every group of ranks has, on each of its
//   nodes, ranks in the same places, exchanging nodes 0 and n maps the job onto itself. Their messages are
//   then alike in size and time.
// Limit: a group may have unequal parts, which differ between nodes. The engine therefore gives the ranks of
//   other nodes the parts of their counterparts on node 0, which are the largest: see MirrorParts. Contents
//   of memory are not those of a real job.
//
// Thread safety: several threads may call RunSimulatedRanks concurrently. Each simulation is single-threaded.
// REQUIRES: code on fibers does not block the thread, by system sleeps or by holding a mutex across a wait,
// and needs at most kFiberStackBytes of stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <absl/functional/any_invocable.h>
#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

// Model of the machine. Times are in nanoseconds, speeds in bytes per nanosecond (GB/s). Every delay is drawn
// uniformly from [1, 1 + jitter] times its nominal value.
struct SimOptions {
  uint64_t seed = 0;
  double jitter = 3.0;
  int64_t poll_ns = 500;      // One iteration of a polling loop.
  int64_t wake_ns = 5'000;    // From a wake-up until the sleeper runs.
  int64_t flag_ns = 200;      // From a store until a local peer sees the flag.
  double memory_speed = 8.0;  // Copies of one rank.
  // The same for bytes that cross between share domains of its node: copies from another domain, and inputs
  // or sums of another domain that a reduction reads or writes. Unset: memory_speed.
  std::optional<double> cross_domain_speed = std::nullopt;
  int64_t wire_latency_ns = 20'000;
  double wire_speed = 1.25;  // Link of one node, per direction: 10 Gbit/s.

  // Cores of a node. Copies and Simulation::Compute of its ranks share them: if more threads are busy than
  // there are cores, all slow down alike. Unset: each has a core of its own.
  std::optional<int> cores = std::nullopt;
  // Bytes that one core passes to or takes from the network stack in a nanosecond. Unset: that takes no time.
  std::optional<double> wire_core_speed = std::nullopt;

  // Runs node 0 alone, for forecasts of time: see Note [Mirrored nodes].
  // REQUIRES: as that note; no jitter, and no slow or dead rank.
  bool mirror_nodes = false;

  struct SlowRank {
    int rank;
    double factor;  // Multiplies every delay of this rank.
  };
  std::optional<SlowRank> slow = std::nullopt;
  struct Death {
    int rank;
    int64_t at_ns;
  };
  std::optional<Death> death = std::nullopt;

  static constexpr size_t kFiberStackBytes = size_t{256} * 1024;
};

struct SimReport {
  std::vector<absl::Status> outcomes;  // Result of each body that ran; kUnavailable if the rank died.
  int64_t virtual_ns = 0;              // Virtual time at the end of the last rank.
  int64_t events = 0;                  // Events that the simulation ran.
  int64_t messages = 0;                // Data messages over links.
  // Control messages that each rank has sent over links.
  std::vector<int64_t> control_messages = {};
  uint64_t fingerprint = 0;  // Hash of all event times; equal for identical runs.

  // OK, or the error of one rank, chosen as by RunThreadRanks.
  absl::Status status() const;
};

// Runs `body` as every rank of `nodes`, or with mirrored nodes as those of node 0. Returns when all ranks
// have ended, or when no remaining rank can make progress; such a rank's outcome is kInternal.
SimReport RunSimulatedRanks(const NodeMap& nodes, const SimOptions& options,
                            absl::FunctionRef<absl::Status(Bootstrap&)> body);

// Interface of a running simulation, for code above `mesh` that models delays (see Runtime::simulation).
class Simulation {
 public:
  virtual ~Simulation() = default;
  virtual int64_t NowNs() const = 0;
  // `ns` with jitter, times the slowdown of `rank`.
  virtual int64_t Delay(int rank, int64_t ns) = 0;
  virtual const SimOptions& options() const = 0;
  // Runs `action` at `time_ns`, or now if that has passed.
  // REQUIRES: `action` does not wait; it runs outside fibers.
  virtual void At(int64_t time_ns, absl::AnyInvocable<void()> action) = 0;
  // The object with this key, which `make` makes at the first call. For tables that are equal on many ranks.
  virtual std::shared_ptr<const void> SharedBetweenRanks(
      uint64_t key, absl::FunctionRef<std::shared_ptr<const void>()> make) = 0;
  // Lets the calling fiber, of `rank`, compute for `ns` on each of `threads` cores; see SimOptions::cores.
  virtual void Compute(int rank, int64_t ns, int threads) = 0;
};

// True if `bootstrap` is that of a rank in a simulation with mirrored nodes.
inline bool HasMirroredNodes(Bootstrap& bootstrap) {
  const Simulation* simulation = bootstrap.runtime().simulation();
  return simulation != nullptr && simulation->options().mirror_nodes;
}

}  // namespace weft
