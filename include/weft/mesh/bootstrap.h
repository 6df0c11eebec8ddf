// How ranks come to be and find each other: processes under MPI, threads of one process, or simulated.
//
// Everything above runs on a Bootstrap unchanged. It gives rank and size, which ranks share a node, a blob
// all-gather for small start-up facts, memory that a node's ranks share, and a link for messages between
// nodes.
//
// Thread safety: one caller at a time a rank.
// Collective: AllGatherBlob, ReserveNodeMemory and OpenWire must be called by all ranks in the same order.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/runtime.h"
#include "weft/mesh/wire_link.h"

namespace weft {

// Which node each rank lives on. Nodes are numbered by their lowest rank.
struct NodeMap {
  std::vector<int> node_of_rank;

  int size() const { return static_cast<int>(node_of_rank.size()); }
  int node_count() const;
  bool SameNode(int a, int b) const { return node_of_rank[a] == node_of_rank[b]; }
  // Ascending.
  std::vector<int> RanksOf(int node) const;

  static NodeMap OneNode(int ranks);
  // Ranks 0..k-1 on node 0, k..2k-1 on node 1, and so on.
  static NodeMap RanksPerNode(int ranks, int ranks_per_node);
};

// One rank's view of the memory that its node shares: a segment of equal size for each rank of the node, each
// at least 64-byte aligned, zero at first, mapped in this process. Pages are not committed yet.
struct NodeMemory {
  struct Segment {
    int rank;
    std::byte* base;
  };
  std::vector<Segment> segments;  // Ascending by rank; the caller's own is among them.
  size_t segment_bytes = 0;
  bool shared_between_processes = false;  // Futexes must then be shared ones.
};

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual const NodeMap& node_map() const = 0;
  int size() const { return node_map().size(); }
  int node() const { return node_map().node_of_rank[rank()]; }
  // The rank's clock, sleeps and threads. Lives as long as the bootstrap.
  virtual Runtime& runtime() = 0;

  // Blobs of all ranks, by rank. Errors: kDeadlineExceeded (names the ranks that have not come).
  virtual absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                                 absl::Duration timeout) = 0;

  // Reserves `segment_bytes` for every rank of the node. All ranks must pass the same size: agree first.
  // The memory lives as long as the bootstrap. Errors: kResourceExhausted (says what is free).
  virtual absl::StatusOr<NodeMemory> ReserveNodeMemory(size_t segment_bytes) = 0;
  // Bytes that the node could still share between its ranks now.
  virtual absl::StatusOr<size_t> FreeNodeMemory() const = 0;

  // A fresh link, whose messages never meet another link's.
  virtual absl::StatusOr<std::unique_ptr<WireLink>> OpenWire() = 0;
};

// The deadline of an MPI bootstrap and of `weft train`: WEFT_TIMEOUT_S seconds, 600 if unset. Engines and
// heaps have it in their options. A value that is no positive number is kInvalidArgument.
absl::StatusOr<absl::Duration> DefaultTimeout();

// All ranks learn the outcome of a local phase (parse, open, load). OK everywhere: OK. Else every rank
// returns the error of the lowest failing rank, "rank N: " in front where it is another's. Collective: all
// ranks of `bootstrap`.
absl::Status AgreeOnStatus(Bootstrap& bootstrap, const absl::Status& local, absl::Duration timeout);

}  // namespace weft
