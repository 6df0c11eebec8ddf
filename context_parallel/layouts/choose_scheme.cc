#include "weft/context_parallel/choose_scheme.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "weft/core/status.h"

namespace weft {
namespace {

constexpr double kMaxImbalance = 1.25;

struct Candidate {
  ContextScheme scheme;
  int64_t bytes;  // The most that any rank receives.
  double imbalance;

  bool is_balanced() const { return imbalance <= kMaxImbalance; }
};

absl::StatusOr<Candidate> EvaluateScheme(const ContextScheme& scheme, const AttentionShape& shape,
                                         const AttentionMask& mask,
                                         absl::Span<const int64_t> document_lengths, int ranks) {
  WEFT_RETURN_IF_ERROR(shape.is_sparse() ? scheme.ValidateSparse(ranks, mask) : scheme.Validate(ranks, mask));
  WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout,
                        SequenceLayout::Create(document_lengths, scheme.Split(ranks)));
  Candidate candidate{.scheme = scheme, .bytes = 0, .imbalance = WorkImbalance(scheme, shape, mask, layout)};
  for (int rank = 0; rank < ranks; ++rank) {
    candidate.bytes = std::max(candidate.bytes, CostsOf(scheme, shape, mask, layout, rank).bytes());
  }
  return candidate;
}

std::string Format(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string Reason(const std::vector<Candidate>& candidates, int ranks) {
  std::string reason;
  for (const Candidate& candidate : candidates) {
    const double mebibytes = static_cast<double>(candidate.bytes) / (1 << 20);
    absl::StrAppend(&reason, reason.empty() ? "" : "; ", candidate.scheme.Describe(ranks), ": ",
                    Format("%.2f MiB", mebibytes));
    if (reason.find("to a rank") == std::string::npos) {
      absl::StrAppend(&reason, " to a rank in an attention's forward and backward");
    }
    if (!candidate.is_balanced()) {
      absl::StrAppend(&reason, ", but one rank has ", Format("%.2f", candidate.imbalance),
                      " of the mean work");
    }
  }
  return reason;
}

}  // namespace

std::vector<ContextScheme> SchemesByDegree(int ranks, LoadBalance balance) {
  std::vector<ContextScheme> schemes;
  for (int degree = ranks; degree >= 1; --degree) {
    if (ranks % degree != 0) continue;
    schemes.push_back(degree == ranks ? ContextScheme::Ulysses()
                                      : ContextScheme{.ulysses_degree = degree, .balance = balance});
  }
  return schemes;
}

std::vector<ContextScheme> SparseSchemes(LoadBalance balance) { return {ContextScheme::Gather(balance)}; }

absl::StatusOr<SchemeChoice> ChooseAmong(absl::Span<const ContextScheme> schemes, const AttentionShape& shape,
                                         const AttentionMask& mask,
                                         absl::Span<const int64_t> document_lengths, int ranks) {
  if (ranks < 1) return absl::InvalidArgumentError("a context group needs at least one rank");
  if (schemes.empty())
    return absl::InvalidArgumentError("there is no scheme to choose from: give at least one");
  std::vector<Candidate> candidates;
  for (const ContextScheme& scheme : schemes) {
    WEFT_ASSIGN_OR_RETURN(candidates.emplace_back(),
                          EvaluateScheme(scheme, shape, mask, document_lengths, ranks));
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.is_balanced() != b.is_balanced() ? a.is_balanced() : a.bytes < b.bytes;
  });
  return SchemeChoice{candidates.front().scheme, Reason(candidates, ranks)};
}

absl::StatusOr<SchemeChoice> ChooseScheme(const AttentionShape& shape, const AttentionMask& mask,
                                          absl::Span<const int64_t> document_lengths, int ranks) {
  const LoadBalance balance = mask.causal ? LoadBalance::kHeadTail : LoadBalance::kNone;
  const std::vector<ContextScheme> schemes =
      shape.is_sparse() ? SparseSchemes(balance) : SchemesByDegree(ranks, balance);
  return ChooseAmong(schemes, shape, mask, document_lengths, ranks);
}

}  // namespace weft
