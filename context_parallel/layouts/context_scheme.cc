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
    case SchemeKind::kGatherKv:
      return "gather";
    case SchemeKind::kHybrid:
      return "hybrid";
    case SchemeKind::kRing:
      return "ring";
  }
  return "unknown";
}

std::string_view Name(OuterExchange outer) { return outer == OuterExchange::kGather ? "gather" : "ring"; }

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

absl::StatusOr<ContextScheme> ContextScheme::OfDegree(std::optional<int> degree, int ranks) {
  if (!degree.has_value() || *degree == ranks) return ContextScheme{.kind = SchemeKind::kUlysses};
  WEFT_RETURN_IF_ERROR(CheckDivides(*degree, ranks));
  if (*degree == 1) return ContextScheme{.kind = SchemeKind::kGatherKv};
  return ContextScheme{.kind = SchemeKind::kHybrid, .ulysses_degree = *degree};
}

absl::Status ContextScheme::Validate(int ranks, const AttentionMask& mask) const {
  if (kind == SchemeKind::kHybrid) {
    WEFT_RETURN_IF_ERROR(CheckDivides(ulysses_degree, ranks));
    if (ulysses_degree == 1 || ulysses_degree == ranks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a hybrid needs a Ulysses degree between 1 and the ", ranks, " ranks of the context group, not ",
          ulysses_degree, ": use ", ulysses_degree == 1 ? ToAbsl(Name(outer)) : "ulysses", " instead"));
    }
  }
  if (balance == LoadBalance::kQueryExchange && kind != SchemeKind::kGatherKv) {
    return absl::InvalidArgumentError(
        absl::StrCat("load balance by query exchange is for the gather scheme, not for ", ToAbsl(Name(kind)),
                     ": use head-tail, or none"));
  }
  if (balance != LoadBalance::kNone && !mask.causal) {
    return absl::InvalidArgumentError(
        absl::StrCat("load balance ", ToAbsl(Name(balance)),
                     " is for causal masks; without one all ranks have the same work: use none"));
  }
  return absl::OkStatus();
}

int ContextScheme::inner(int ranks) const {
  switch (kind) {
    case SchemeKind::kUlysses:
      return ranks;
    case SchemeKind::kHybrid:
      return ulysses_degree;
    case SchemeKind::kGatherKv:
    case SchemeKind::kRing:
      return 1;
  }
  return 1;
}

bool ContextScheme::has_ring() const {
  return kind == SchemeKind::kRing || (kind == SchemeKind::kHybrid && outer == OuterExchange::kRing);
}

SequenceSplit ContextScheme::Split(int ranks) const {
  return {.outer = outer_ranks(ranks),
          .inner = inner(ranks),
          .order = balance == LoadBalance::kHeadTail ? SequenceOrder::kHeadTail : SequenceOrder::kContiguous};
}

std::string ContextScheme::Describe(int ranks) const {
  std::string text(Name(kind));
  if (kind == SchemeKind::kHybrid) {
    absl::StrAppend(&text, ", ", outer_ranks(ranks), " x ulysses ", ulysses_degree, ", ",
                    ToAbsl(Name(outer)));
  }
  if (has_ring()) absl::StrAppend(&text, " by ", ToAbsl(Name(rotation)));
  if (balance != LoadBalance::kNone) absl::StrAppend(&text, ", ", ToAbsl(Name(balance)));
  return text;
}

}  // namespace weft
