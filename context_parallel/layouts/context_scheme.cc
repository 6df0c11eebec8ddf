#include "weft/context_parallel/context_scheme.h"

#include "weft/core/status.h"

namespace weft {
namespace {

absl::Status CheckDivides(int degree, int ranks) {
  if (degree >= 1 && ranks % degree == 0) return absl::OkStatus();
  std::string divisors;
  for (int divisor = 1; divisor <= ranks; ++divisor) {
    if (ranks % divisor == 0) absl::StrAppend(&divisors, divisors.empty() ? "" : ", ", divisor);
  }
  return absl::InvalidArgumentError(absl::StrCat("a Ulysses degree of ", degree, " does not divide the ",
                                                 ranks, " ranks of the context group: choose one of ",
                                                 divisors));
}

}  // namespace

std::string_view Name(SchemeKind kind) {
  switch (kind) {
    case SchemeKind::kUlysses:
      return "ulysses";
    case SchemeKind::kGather:
      return "gather";
    case SchemeKind::kHybrid:
      return "hybrid";
    case SchemeKind::kRing:
      return "ring";
  }
  return "unknown";
}

std::string_view Name(RingRotation rotation) {
  return rotation == RingRotation::kAllGather ? "all-gather" : "shift";
}

std::string_view Name(LoadBalance balance) {
  switch (balance) {
    case LoadBalance::kNone:
      return "none";
    case LoadBalance::kHeadTail:
      return "head-tail";
    case LoadBalance::kQueryExchange:
      return "query-exchange";
  }
  return "unknown";
}

ContextScheme ContextScheme::Gather(LoadBalance balance) { return {.ulysses_degree = 1, .balance = balance}; }

ContextScheme ContextScheme::Ring(RingRotation rotation, LoadBalance balance) {
  return {.ulysses_degree = 1, .ring_rotation = rotation, .balance = balance};
}

absl::Status ContextScheme::Validate(int ranks, const AttentionMask& mask) const {
  if (ulysses_degree) WEFT_RETURN_IF_ERROR(CheckDivides(*ulysses_degree, ranks));
  if (balance == LoadBalance::kQueryExchange && kind(ranks) != SchemeKind::kGather) {
    return absl::InvalidArgumentError(
        absl::StrCat("load balance by query exchange is for the gather scheme, not for ",
                     ToAbsl(Name(kind(ranks))), ": use head-tail, or none"));
  }
  if (balance != LoadBalance::kNone && !mask.causal) {
    return absl::InvalidArgumentError(
        absl::StrCat("load balance ", ToAbsl(Name(balance)),
                     " is for causal masks; without one all ranks have the same work: use none"));
  }
  return absl::OkStatus();
}

absl::Status ContextScheme::ValidateSparse(int ranks, const AttentionMask& mask) const {
  WEFT_RETURN_IF_ERROR(Validate(ranks, mask));
  const bool gathers = kind(ranks) == SchemeKind::kGather && balance != LoadBalance::kQueryExchange;
  if (gathers || ranks == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sparse attention selects among the keys of all ranks, so its scheme must be gather, not ",
                   Describe(ranks), ": use gather", mask.causal ? ", with head-tail load balance" : ""));
}

SchemeKind ContextScheme::kind(int ranks) const {
  // A degree of 1 means no exchange of heads even if the group has one rank.
  if (ulysses_degree == 1) return ring_rotation ? SchemeKind::kRing : SchemeKind::kGather;
  return inner_ranks(ranks) == ranks ? SchemeKind::kUlysses : SchemeKind::kHybrid;
}

SequenceSplit ContextScheme::Split(int ranks) const {
  return {.outer = outer_ranks(ranks),
          .inner = inner_ranks(ranks),
          .order = balance == LoadBalance::kHeadTail ? SequenceOrder::kHeadTail : SequenceOrder::kContiguous};
}

std::string ContextScheme::Describe(int ranks) const {
  const SchemeKind kind = this->kind(ranks);
  std::string text(Name(kind));
  if (kind == SchemeKind::kHybrid) {
    absl::StrAppend(&text, ", ", outer_ranks(ranks), " x ulysses ", inner_ranks(ranks), ", ",
                    ring_rotation ? "ring" : "gather");
  }
  if (ring_rotation && kind != SchemeKind::kUlysses) {
    absl::StrAppend(&text, " by ", ToAbsl(Name(*ring_rotation)));
  }
  if (balance != LoadBalance::kNone) absl::StrAppend(&text, ", ", ToAbsl(Name(balance)));
  return text;
}

}  // namespace weft
