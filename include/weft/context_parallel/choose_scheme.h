// Which scheme fits a model and a sequence: the one that moves the fewest bytes, among those that leave no
// rank idle.
//
// Pure: every rank chooses the same. Thread safety: any thread may call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/context_parallel/byte_formulas.h"
#include "weft/context_parallel/context_scheme.h"
#include "weft/nn/attention_mask.h"

namespace weft {

struct SchemeChoice {
  ContextScheme scheme;
  // "ulysses: 12.0 MiB to a rank in a layer's forward and backward; gather: 18.0 MiB; …".
  std::string reason;
};

// A scheme for every degree that divides the ranks, the highest first: Ulysses, hybrids of gathers, gather;
// each but Ulysses with `balance`.
std::vector<ContextScheme> SchemesByDegree(int ranks, LoadBalance balance);

// The one of `schemes` that moves the fewest bytes; of equal ones the first. Compared is the most that any
// rank receives in forward and backward. Schemes in which some rank has more than 1.25 of the mean work
// (heads that hardly divide) come into question only if there is no other. Errors: kInvalidArgument
// (SequenceLayout's; no scheme, no ranks).
absl::StatusOr<SchemeChoice> ChooseAmong(absl::Span<const ContextScheme> schemes, const AttentionShape& shape,
                                         const AttentionMask& mask,
                                         absl::Span<const int64_t> document_lengths, int ranks);

// Among SchemesByDegree, head-tail where the mask is causal. (Rings move more than gathers; they are for
// sequences whose gathered keys and values do not fit. Of equal schemes the higher degree holds less.)
absl::StatusOr<SchemeChoice> ChooseScheme(const AttentionShape& shape, const AttentionMask& mask,
                                          absl::Span<const int64_t> document_lengths, int ranks);

}  // namespace weft
