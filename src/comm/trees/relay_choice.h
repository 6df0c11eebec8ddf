// Form of small all-gathers, reduce-scatters and all-reduces between nodes: direct, or relayed. Pure.
//
// Note [Relayed exchanges]
// Problem: in a direct exchange, a rank has a message, a credit and a connection for each other node, even if
// the parts are a few bytes.
// Rule: the first member of each node, the *node leader*, acts for the node, in as many rounds as
// log2(nodes).
//   - All-gather: in round k, node i gets from node i + 2^k the parts that this node has by then, up to 2^k
//     nodes' parts, and sends as many of its own to node i - 2^k (J. Bruck et al., "Efficient algorithms for
//     all-to-all communications in multiport message-passing systems", IEEE TPDS 8, 1997).
//   - Reduce-scatter: recursive halving, see Note [Halving].
//   - All-reduce: both, one after the other. The parts belong to the first nodes, a power of two of them, so
//     that each of several has 4 KiB or more: the fewer parts, the more messages are empty. Few bytes take
//     the tree of Note [Tree collectives] instead: they fit a control message, which takes no credit.
// Bits: additions are those of Note [Canonical tree]. Sums of bf16 and f16 would have to travel as f32, so
// they are direct.
// Credits: relayed slices have a window of their own (WirePhase::kRelay). Only the first operation of a lane
// that is not *ready* gives credits in it, and gives them in the order of the rounds. Why there is no
// deadlock: take the earliest round of which a slice is stuck. Slices of earlier rounds arrive, so a window
// that has no room for it holds slices of this round. Their senders have all that they need, so the slices
// arrive and make room. The rounds of an all-reduce are those of both phases.
// Mismatches: a credit goes to the sender of a message before the data, so the two compare descriptors. A
// rank whose output depends on another has compared with it, or with ranks that have. As in a broadcast, a
// rank may finish without the error if all with which it exchanges messages agree. A rank that expects an
// empty message announces that: see Note [Empty parts]. An all-reduce skips empty messages: each output
// depends on all ranks, and what a rank sends leaves against a credit, which has a descriptor.
// Cost: a direct exchange takes the time of a message for each other node. Rounds take more for each message,
// one after the other, each with the time from node to node; they bring the same bytes, and copy them twice.
// The form with the smaller sum is chosen. Its constants are not measured at run time, because all ranks must
// choose alike.
// Limits: nodes hold consecutive ranks; for sums as many, a power of two, but for the last node. A node is
// one share domain. Parts lie end to end, not in views, are not delta-encoded, and not in an output that
// ranks share. Data travels uncompressed: it is at most kMaxRelayedBytes. A part that lies in place already
// is written again, with the same bytes.
#pragma once

#include <cstdint>

namespace weft {

// Largest buffer of a relayed exchange: of a gather, its output, and of sums, their input.
inline constexpr int64_t kMaxRelayedBytes = int64_t{512} * 1024;

// True if a relayed gather of `bytes` in all is faster than a direct one.
bool RelayedGatherPays(int nodes, int64_t bytes);
// The same for a reduce-scatter or an all-reduce between nodes of `members` ranks. `bytes`: those of an
// input.
bool RelayedReduceScatterPays(int nodes, int members, int64_t bytes);
bool RelayedAllReducePays(int nodes, int members, int64_t bytes);
// The number of nodes that own a part of a relayed all-reduce, the first ones: a power of two.
int OwnersOfAllReduce(int nodes, int64_t bytes);
// True if an all-reduce whose sum fits a control message is faster in a tree of the nodes than direct.
bool TreePays(int nodes);

}  // namespace weft
