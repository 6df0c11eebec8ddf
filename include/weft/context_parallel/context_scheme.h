// How the ranks of a context group share attention. docs/context_parallel.md compares the schemes.
//
// Ranks are outer x inner. Inner ranks, which are adjacent, exchange tokens for heads (Ulysses): each has all
// tokens of its inner group, for some of the heads. Outer ranks exchange keys and values, for the heads they
// have:
//
//   kUlysses    all inner: two exchanges of everything, 1/P of it each; no more ranks have work than
//               there are heads
//   kGatherKv   all outer: keys and values are gathered by all ranks, and kept for backward
//   kRing       all outer: keys and values visit one rank after the other, and are sent again in backward
//   kHybrid     both, the outer level by gather or by ring
//
// Pure. Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/context_parallel/sequence_layout.h"
#include "weft/nn/attention_mask.h"

namespace weft {

enum class SchemeKind : uint8_t { kUlysses, kGatherKv, kHybrid, kRing };
// The outer level of a hybrid.
enum class OuterExchange : uint8_t { kGather, kRing };
// How a ring's blocks come: all by one all-gather while the own block is computed, or from neighbour to
// neighbour, the next one while one is computed.
enum class RingRotation : uint8_t { kAllGather, kShift };
// What evens out the work that a causal mask leaves to ranks. kHeadTail: the input's layout does (ring,
// gather, hybrid). kQueryExchange: ranks r and P-1-r of a contiguous layout swap the tails of their queries
// (gather).
enum class LoadBalance : uint8_t { kNone, kHeadTail, kQueryExchange };

// "ulysses", "gather", "hybrid", "ring"; "gather", "ring"; "all-gather", "shift"; "none", "head-tail",
// "query-exchange".
std::string_view Name(SchemeKind kind);
std::string_view Name(OuterExchange outer);
std::string_view Name(RingRotation rotation);
std::string_view Name(LoadBalance balance);

struct ContextScheme {
  SchemeKind kind = SchemeKind::kUlysses;
  int ulysses_degree = 0;  // Inner ranks, of a hybrid only.
  OuterExchange outer = OuterExchange::kGather;
  RingRotation rotation = RingRotation::kShift;
  LoadBalance balance = LoadBalance::kNone;

  // The scheme that an exchange of heads over `degree` of `ranks` ranks means: none or all, Ulysses; 1,
  // gather; between, hybrid. Errors: kInvalidArgument (a degree that does not divide the ranks).
  static absl::StatusOr<ContextScheme> OfDegree(std::optional<int> degree, int ranks);

  // Errors: kInvalidArgument, each with the remedy (a hybrid whose degree does not divide the ranks, or is
  // none or all of them; a query exchange without a gather over all ranks; balance for a mask that is not
  // causal).
  absl::Status Validate(int ranks, const AttentionMask& mask) const;

  int inner(int ranks) const;
  int outer_ranks(int ranks) const { return ranks / inner(ranks); }
  bool has_ring() const;  // On its outer level.
  // How sequences must be laid out for it.
  SequenceSplit Split(int ranks) const;

  // "hybrid, 2 x ulysses 4, ring by shift, head-tail".
  std::string Describe(int ranks) const;

  friend bool operator==(const ContextScheme&, const ContextScheme&) = default;
};

}  // namespace weft
