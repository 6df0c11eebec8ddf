// Options and counters of the communication engine.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <absl/time/time.h>

#include "weft/mesh/share_domain.h"

namespace weft {

// Form of small all-gathers, reduce-scatters and all-reduces between nodes: direct, or relayed by nodes in
// rounds (Note [Relayed exchanges] in src/comm/trees/relay_choice.h). All-reduces of at most 64 bytes always
// take a tree of nodes (Note [Tree collectives], which has the limits). Larger ones up to 896 bytes (f16:
// 448; bf16: none) take it instead of rounds. Results have the same bits in each form.
enum class Relaying : uint8_t {
  kWhereItPays,  // Relayed or in a tree, if the costs of messages and bytes say so.
  kAlways,       // Relayed or in a tree, up to the largest size. For tests and measurements, as the next one.
  kNever,        // Direct, but for all-reduces of at most 64 bytes.
};

// Numbers are at least 1; slice_bytes, piece_bytes and max_run_bytes are at most 256 MiB. The timeout is
// positive.
// REQUIRES: timeout, share_domain, slice_bytes, piece_bytes and relaying are the same on all ranks.
//   CommEngine::Create compares them.
struct EngineOptions {
  // Deadline of every Wait that names none. Unset: the environment's WEFT_TIMEOUT_S (DefaultTimeout).
  std::optional<absl::Duration> timeout = std::nullopt;
  // The ranks of a node that share images. Unset: the environment's WEFT_SHARE_DOMAIN (DefaultShareDomain).
  std::optional<ShareDomain> share_domain = std::nullopt;
  // Size of a slice, the unit of copies, sums and transfers in groups that span nodes. The default and its
  // header stay below 64 KiB, the limit up to which MPI sends eagerly over TCP. Larger slices use the
  // rendezvous protocol, whose handshake queues behind other data.
  int64_t slice_bytes = int64_t{60} * 1024;
  // Bytes that one phase (reduce, gather or relay) of a lane may have in flight to this rank, and twice as
  // many of kCritical operations, such as those that a thread waits for. A phase begins with credits for as
  // many (Note [Paced credits] in src/comm/links/credit_pace.h).
  int64_t lane_window_bytes = int64_t{512} * 1024;
  // Bytes in flight of all lower priorities together, while an operation of higher priority needs the wire.
  // An operation needs the wire if a peer that has started it has data for this rank. This window and the
  // next one do not count the first two slices of a peer that has not started the operation.
  int64_t yield_window_bytes = int64_t{64} * 1024;
  // Bytes in flight of all operations below kCritical together, at any time. Applies to engines with a
  // kContext lane that spans nodes. It bounds the data that a new exchange finds queued ahead of it.
  int64_t background_window_bytes = int64_t{256} * 1024;
  // Upper bound of the bytes that all lanes together may have in flight. On a fast or long link their windows
  // grow to what the measured rate fills in the time of a credit. 1 switches the growth off.
  int64_t max_budget_bytes = int64_t{64} << 20;
  // Largest message of a fast link, which holds several slices. A thread copies as much between two polls
  // there, and reads and writes up to four times as much for a sum. If it holds fewer than four slices, they
  // travel alone, as they do if max_budget_bytes is below 24 slices (9.6 over TCP sockets).
  int64_t max_run_bytes = int64_t{512} * 1024;
  // Partial sums of other nodes that a reduction adds in one step. A reduction that needs more of them adds
  // them in several steps. Sums have the same bits for every value.
  int64_t reduce_fan_in = 32;
  // Scratch memory for the partial sums of such a reduction. It has room for those of one step at least.
  // A reduction of fewer partial sums has room for 16 slices in all (96 if there is only one, or if slices
  // travel in runs), four slices of each, or the budget, whichever is most.
  int64_t reduce_window_bytes = int64_t{8} << 20;
  // Size of a piece, the unit of data movement in groups on one node, and of staging copies. Groups that span
  // nodes move slices. Priorities are reconsidered after each piece, slice or run of slices.
  int64_t piece_bytes = int64_t{256} * 1024;
  Relaying relaying = Relaying::kWhereItPays;
  // Operations that the flight recorder keeps.
  int recorder_entries = 512;
  // When the engine fails because a rank is missing, because ranks disagree, or because the transport fails,
  // writes the flight recorder. If the failure is a missed deadline, ends the process
  // by _Exit(86): in the engine's destructor, or about a second after the failure. ResetAfterError has its
  // whole deadline if it is called on each rank within this second.
  // Also ends the process if an operation runs for four seconds more than the timeout. While a thread waits
  // with a later deadline (Work::Wait), that deadline counts instead.
  // The watchdog's thread makes no MPI call. REQUIRES: off for ranks that are threads of one process.
  bool watchdog = false;
  // Folder in which the watchdog of each rank writes its flight recorder, as rank-<N>.json; created if
  // needed. At the start it renames the file of an earlier run to rank-<N>.json.old. `weft diagnose` reads
  // those of this run. Empty: no file.
  std::string dump_folder;
};

// Totals since the engine was created: subtract two readings for an interval.
struct EngineCounters {
  // Bytes that the algorithms must bring to this rank from its peers, by purpose of the lane. Independent of
  // placement, transport and compression.
  int64_t all_gather_bytes = 0;
  int64_t reduce_scatter_bytes = 0;
  int64_t all_reduce_bytes = 0;
  int64_t context_bytes = 0;
  int64_t control_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t point_to_point_bytes = 0;  // Of messages that match a receive of this rank, from other ranks.
  // Bytes of slices that this rank sent to other nodes, the messages in which they traveled, and bytes that
  // compression saved. Slices that do not compress take a few bytes more, and make the last total decrease.
  int64_t wire_bytes = 0;
  int64_t wire_messages = 0;
  int64_t wire_saved_bytes = 0;
  // Control messages that this rank sent to ranks of other nodes, such as credits, and the number of ranks
  // to which it sent control messages or slices.
  int64_t control_messages = 0;
  int64_t wire_peers = 0;
  // Bytes that gathers and reductions move between share domains of nodes on behalf of this rank: parts that
  // it copies from other domains, inputs and sums of other domains that it reduces, and results that it
  // writes to their outputs. Without all-reduces of at most 4 KiB on one node.
  int64_t cross_domain_bytes = 0;
  // Bytes that the engine staged, packed or unpacked. 0 if every buffer lies in node memory, every part
  // that crosses nodes is contiguous, and no gather or all-reduce is relayed. Compression does not count.
  int64_t copied_bytes = 0;
  int64_t operations = 0;  // Operations that are *released*.
  // Peak of the bytes in flight that were requested while a lane of higher priority needed the wire. At most
  // max(yield_window_bytes, slice) plus a slice for each of three phases of each lane.
  int64_t yielded_peak_bytes = 0;
  // Peak of the bytes that this rank had requested from other nodes and not yet received. For each lane and
  // phase at most twice lane_window_bytes plus a slice, beside max_budget_bytes in all.
  int64_t requested_peak_bytes = 0;
  // Peak of the bytes in flight that were requested from ranks that were not known to have started the
  // operation, beyond the first two slices of each part. At most half of max_budget_bytes.
  int64_t ran_ahead_peak_bytes = 0;
  // Time that threads spent in Work::Wait and WaitReleased: communication that computation did not hide.
  int64_t wait_ns = 0;
};

}  // namespace weft
