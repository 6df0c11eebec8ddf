// Interface of a rank's environment: ranks are MPI processes, processes that share a key-value store, threads
// of one process, or simulated.
//
// All layers above run unchanged on every kind of Bootstrap. It provides the rank and the world size, the
// node of each rank, a runtime (clock, sleeps, threads), an all-gather of small blobs for start-up,
// node-shared memory, and links for messages between ranks.
//
// Thread safety: one caller at a time per rank.
// Collective: AllGatherBlob, ReserveNodeMemory and OpenLink must be called by all ranks in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/host_memory.h"
#include "weft/mesh/runtime.h"
#include "weft/mesh/wire_link.h"

namespace weft {

// Assignment of ranks to nodes. Nodes are numbered in the order of their lowest ranks.
struct NodeMap {
  static constexpr int kNotBound = -1;

  std::vector<int> node_of_rank;
  // The NUMA node to which each rank is bound, by its number on the rank's host; kNotBound if the rank may
  // run on several. Empty: no rank is bound.
  std::vector<int> numa_of_rank = {};

  int size() const { return static_cast<int>(node_of_rank.size()); }
  int node_count() const;
  bool SameNode(int a, int b) const { return node_of_rank[a] == node_of_rank[b]; }
  // The ranks of a node, ascending.
  std::vector<int> RanksOf(int node) const;

  static NodeMap OneNode(int ranks);
  // Ranks 0..k-1 on node 0, k..2k-1 on node 1, and so on.
  static NodeMap RanksPerNode(int ranks, int ranks_per_node);
};

// Node-shared memory as one rank sees it: one segment of `segment_bytes` for each rank of the node. Segments
// are mapped in this process, at least 64-byte aligned, and zero at first. Their pages are not committed yet.
struct NodeMemory {
  struct Segment {
    int rank;
    std::byte* base;
  };
  std::vector<Segment> segments;  // Ascending by rank; includes the caller's segment.
  size_t segment_bytes = 0;
  bool shared_between_processes = false;  // If true, futexes must not be process-private.
};

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual const NodeMap& node_map() const = 0;
  int size() const { return node_map().size(); }
  int node() const { return node_map().node_of_rank[rank()]; }
  // The rank's clock, sleeps and threads.
  // Lifetime: the bootstrap's.
  virtual Runtime& runtime() = 0;

  // Returns the blobs of all ranks, indexed by rank.
  // Errors: kDeadlineExceeded (names the ranks that did not call in time), kInvalidArgument (over MPI: the
  //   blob has more than 1 GiB), kInternal (MPI or the store failed; has its message), and those that the
  //   store adds, such as kCancelled after an interrupt.
  virtual absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                                 absl::Duration timeout) = 0;

  // Reserves `segment_bytes` of node-shared memory for every rank. Lifetime of the memory: the bootstrap's.
  // REQUIRES: all ranks pass the same size.
  // Errors: kResourceExhausted (gives the requested and the free bytes, or has the kernel's message),
  //   kFailedPrecondition (the host forbids shared memory, or its processes cannot open that of each other;
  //   names the remedy), kInternal (the system does not tell the free memory, or MPI failed), and those of
  //   AgreeOnStatus. Not all ranks return the same: agree on the outcome.
  virtual absl::StatusOr<NodeMemory> ReserveNodeMemory(size_t segment_bytes) = 0;
  // Memory that the ranks of this node can still take together. Errors: kInternal (the system does not tell).
  virtual absl::StatusOr<FreeMemory> FreeNodeMemory() const = 0;

  // Opens a new link. Messages of different links never match each other. Links are numbered in the order of
  // their opening: the n-th links of all ranks are one link.
  // Errors: kDeadlineExceeded (not all ranks opened it within `timeout`), kFailedPrecondition (over TCP: a
  //   rank has no network, or no sockets; names the rank), kInternal (MPI failed, or a rank sent no address),
  //   and over TCP those of AllGatherBlob.
  virtual absl::StatusOr<std::unique_ptr<WireLink>> OpenLink(absl::Duration timeout) = 0;
  // Names what carries the messages of these links, for a person to read: "TCP sockets", or "MPI (Open MPI
  // 4.1.4), because of the variable UCX_TLS on the host of rank 0" if it was chosen for that reason.
  virtual std::string TransportName() const = 0;
  // Links that this rank has opened, tried to open or skipped.
  virtual int64_t link_count() const = 0;
  // Skips the links that peers have opened without this rank, until link_count() is `count`. After a missed
  // deadline, ranks may have different counts: they agree on the highest one, skip, and open the next link.
  virtual void SkipLinks(int64_t count) = 0;
};

// Timeout if WEFT_TIMEOUT_S is unset, and that of the exchange in which a rank reports an invalid one.
inline constexpr absl::Duration kFallbackTimeout = absl::Seconds(600);
// Timeout where a program gives none: WEFT_TIMEOUT_S seconds, 600 if unset.
// Errors: kInvalidArgument (WEFT_TIMEOUT_S is not a number, or below a millisecond).
absl::StatusOr<absl::Duration> DefaultTimeout();
// The timeout of options: their own, or DefaultTimeout.
absl::StatusOr<absl::Duration> TimeoutOrDefault(std::optional<absl::Duration> own);

// Note [Exchanges]
// Problem: the bootstrap matches rounds of blobs by position. A rank that fails on its own returns early. Its
//   next round, an agreement, then matches another exchange of its peers. They would read its error as data,
//   and wait in their own agreement for a rank that has left.
// Rule: each blob names its exchange, and may hold an error instead of data. If a round has an error, every
//   rank returns it, in whichever exchange it is. An agreement on such an error takes no round. A rank that
//   fails on its own must therefore end in an agreement, and programs agree at the end of each phase.
// Why it suffices: all ranks of a round see the same blobs and decide alike, so all leave the phase with the
//   same error, after the same number of rounds.
// Without it: rounds of different phases pair, and ranks wait for the whole timeout or use wrong data.

// Returns the blobs of all ranks, indexed by rank. If `local` is an error on some rank, returns the error of
// the lowest such rank, as AgreeOnStatus. `what` names the exchange, for example "heap sizes".
// Errors: those of AgreeOnStatus; kInternal (ranks are in different exchanges; names them).
// Collective: all ranks of `bootstrap`, with the same `what`.
absl::StatusOr<std::vector<std::string>> ExchangeBlobs(Bootstrap& bootstrap, std::string_view what,
                                                       const absl::StatusOr<std::string>& local,
                                                       absl::Duration timeout);

// Exchanges the outcomes of a phase that can fail on one rank alone, such as parsing or loading. Returns OK
// if `local` is OK on all ranks. Otherwise every rank returns the error of the lowest failing rank, with
// "rank N: " in front on the other ranks. If the exchange itself fails, a rank returns the error of the
// exchange, with its `local` error in the message: the ranks do not agree, and later collectives may block.
// Returns `local` without an exchange if all ranks have it already (IsAgreedError), or if it is
// kDeadlineExceeded.
// Collective: all ranks of `bootstrap`. Peers may be in another exchange if `local` is an error; see
// Note [Exchanges].
absl::Status AgreeOnStatus(Bootstrap& bootstrap, const absl::Status& local, absl::Duration timeout);
// An option that all ranks of a job must set alike, for example from their environments.
struct OptionValue {
  std::string name;
  std::string value;
  std::string remedy;  // How to set it, for messages.
};
// Compares the options of all ranks. `own` may be an error of this rank's options, which every rank returns
// at once. `what` names the options, for example "engine options".
// Errors: kInvalidArgument (an option differs; names both values and ranks, and the remedy); those of
//   ExchangeBlobs.
// Collective: all ranks of `bootstrap`, with the same options in the same order.
absl::Status AgreeOnOptions(Bootstrap& bootstrap, std::string_view what,
                            const absl::StatusOr<std::vector<OptionValue>>& own, absl::Duration timeout);
// True if AgreeOnStatus or ExchangeBlobs returned the error of a rank, so that every rank has it. ToString
// of such a status ends in [weft.ranks='all'].
bool IsAgreedError(const absl::Status& status);

}  // namespace weft
