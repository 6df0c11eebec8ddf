// Form of small all-gathers and reduce-scatters between nodes: direct, or relayed by nodes. Pure.
//
// Note [Relayed exchanges]
// Problem: in a direct exchange, a rank has a message, a credit and a connection for each other node, even if
// the parts are a few bytes.
// Rule: the first member of each node, its *leader*, acts for the node.
//   - All-gather: in round k, node i gets from node i + 2^k the parts that this node has by then, up to 2^k
//     nodes' parts, and sends as many of its own to node i - 2^k (Bruck et al., "Efficient algorithms for
//     all-to-all communications in multiport message-passing systems", IEEE TPDS 8, 1997).
//   - Reduce-scatter: partial sums of the whole buffer go up the canonical tree, as in Note [Tree
//     collectives]. Then the parts go down a binomial tree of nodes: each message has the parts of a subtree.
// Bits: additions are those of Note [Canonical tree]. A partial sum of bf16 is rounded for the same parts as in
// a direct exchange: those of ranks on other nodes.
// Credits: relayed slices have a window of their own (WirePhase::kRelay). Only the first operation of a lane
// that is not *ready* gives credits in it, and gives them in the order of the rounds: from the smallest sums
// up, then for the message down. Why there is no deadlock: take the earliest round of which a slice is stuck.
// Slices of earlier rounds arrive, so a window that has no room for it holds slices of this round. Their
// senders have all that they need, so the slices arrive and make room.
// Mismatches: a credit goes to the sender of a message before the data, so the two compare descriptors. A rank
// whose outputs depend on another has compared with it, or with ranks that have. A rank that expects an empty
// message announces that: see Note [Empty parts].
// Cost: a direct exchange takes the time of a message for each other node, and that of its bytes. Rounds take
// as many messages, one after the other, each with the time from node to node. A relayed gather brings the
// same bytes and copies them twice. A relayed sum brings the whole buffer in each round. The form with the
// smaller sum is chosen. Constants are not measured at run time: all ranks must choose alike.
// Limits: groups whose nodes hold consecutive ranks; parts end to end, outside of views, not delta-encoded,
// and not in an output that ranks share. Data travels uncompressed: it is at most kMaxRelayedBytes.
#pragma once

#include <cstdint>

namespace weft {

// Largest buffer of a relayed exchange, which bounds its scratch memory.
inline constexpr int64_t kMaxRelayedBytes = int64_t{512} * 1024;

// Rounds of an exchange between `nodes` nodes: log2, rounded up.
int RelayRoundCount(int nodes);
// True if a gather of `bytes` in all is faster if it is relayed.
bool RelayedGatherPays(int nodes, int64_t bytes);
// True if a reduce-scatter is. `bytes`: those of a sum of the whole buffer, as it travels. `subtrees`: the
// maximal subtrees of the reduction that lie on one node each, of all nodes.
bool RelayedReduceScatterPays(int nodes, int subtrees, int64_t bytes);

}  // namespace weft
