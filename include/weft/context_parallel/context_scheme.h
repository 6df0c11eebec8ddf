// Scheme by which the ranks of a context group share attention. docs/context_parallel.md compares the
// schemes.
//
// The ranks form two levels, outer x inner. Inner ranks are adjacent. They exchange heads for tokens with an
// all-to-all (Ulysses): each rank gets all tokens of its inner group, for some of the heads. Outer ranks
// exchange keys and values of the heads that they have, by a gather or in a ring. The number of inner ranks
// and the outer exchange decide the kind:
//
//   kUlysses    all ranks are inner: an all-to-all each of queries, keys, values and outputs, and of their
//               gradients; no more ranks have work than there are heads
//   kGather     all ranks are outer: all gather keys and values, and keep them for backward
//   kRing       all ranks are outer: keys and values visit one rank after the other, again in backward
//   kHybrid     both levels have several ranks; the outer level gathers, or is a ring
//
// Pure. Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <absl/status/status.h>

#include "weft/context_parallel/sequence_layout.h"
#include "weft/nn/attention_mask.h"

namespace weft {

enum class SchemeKind : uint8_t { kUlysses, kGather, kHybrid, kRing };
// Transfer of the blocks of a ring. kAllGather: one all-gather brings all of them while the rank
// computes its own block. kShift: each rank passes a block to the next rank while it computes the block.
enum class RingRotation : uint8_t { kAllGather, kShift };
// Balance of the work of a causal mask. kHeadTail: by the layout of the sequence (gather, ring, hybrid).
// kQueryExchange: ranks r and P-1-r of a contiguous layout swap the tails of their queries (gather only).
enum class LoadBalance : uint8_t { kNone, kHeadTail, kQueryExchange };

// "ulysses", "gather", "hybrid", "ring".
std::string_view Name(SchemeKind kind);
// "all-gather", "shift".
std::string_view Name(RingRotation rotation);
// "none", "head-tail", "query-exchange".
std::string_view Name(LoadBalance balance);

struct ContextScheme {
  // Inner ranks. Unset: all ranks of the context group. 1: no exchange of heads.
  std::optional<int> ulysses_degree = std::nullopt;
  // The outer level is a ring with this rotation. Unset: it gathers. Without effect if the outer level has
  // one rank.
  std::optional<RingRotation> ring_rotation = std::nullopt;
  LoadBalance balance = LoadBalance::kNone;

  static ContextScheme Ulysses() { return {}; }
  static ContextScheme Gather(LoadBalance balance = LoadBalance::kNone);
  static ContextScheme Ring(RingRotation rotation = RingRotation::kShift,
                            LoadBalance balance = LoadBalance::kNone);

  // Errors: kInvalidArgument, each with the remedy (the degree does not divide the ranks; a query exchange
  // without a gather over all ranks; a balance for a mask that is not causal).
  absl::Status Validate(int ranks, const AttentionMask& mask) const;

  // The same for sparse attention, which selects among the keys of all ranks. Errors, in addition:
  // kInvalidArgument (the scheme does not gather keys over all ranks, or exchanges queries).
  absl::Status ValidateSparse(int ranks, const AttentionMask& mask) const;

  // The functions below have the precondition of Validate. REQUIRES: the Ulysses degree divides `ranks`.
  SchemeKind kind(int ranks) const;
  int inner_ranks(int ranks) const { return ulysses_degree.value_or(ranks); }
  int outer_ranks(int ranks) const { return ranks / inner_ranks(ranks); }
  // The split of sequences that the scheme needs.
  SequenceSplit Split(int ranks) const;

  // "hybrid, 2 x ulysses 4, ring by shift, head-tail".
  std::string Describe(int ranks) const;

  friend bool operator==(const ContextScheme&, const ContextScheme&) = default;
};

}  // namespace weft
