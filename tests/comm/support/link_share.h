// Share of a link's speed that a collective reaches between simulated nodes: the real engine, on virtual
// time. For tests and benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/comm/engine_options.h"

namespace weft::testing {

enum class LinkOp : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,         // Parts end to end.
  kStridedAllToAll,  // Parts in alternating blocks of 4 KiB.
  kSendReceive,      // To the next rank. REQUIRES: one rank a node.
  kBroadcast,        // From rank 0.
};

struct LinkExperiment {
  LinkOp op = LinkOp::kAllGather;
  double gigabits = 0;
  int64_t latency_ns = 0;
  bool waited = false;  // If false, all threads compute, so that only the progress threads poll.
  int nodes = 2;
  int ranks_of_node = 1;
  // Size of the buffer of each rank. In an all-to-all, that of the buffers of a node's ranks together.
  int64_t bytes = int64_t{48} << 20;
  double memory_speed = 1e3;  // SimOptions::memory_speed.
  // Memory of each rank beside its buffers.
  size_t scratch_bytes = size_t{144} << 20;
  uint64_t seed = 0;  // Of the schedule.
  EngineOptions options = {};
};

struct LinkUse {
  // The shortest possible time divided by that from the submission, at the same time on all ranks, to
  // *released* on all. The shortest time is that of the bytes and of two latencies, of a credit and of the
  // data. A broadcast has a latency for its credit and one for each edge of the longest path of its trees.
  // The share is the median of the last three of eight rounds: the first rounds find a rate that is not
  // measured yet, and a round may wait for a poll more or less.
  double share;
  // On average, in all rounds. Not for broadcasts and send-receives.
  double slices_of_message;
};

// Fails the program, or the test, if a rank fails.
LinkUse UseOfLink(const LinkExperiment& experiment);

}  // namespace weft::testing
