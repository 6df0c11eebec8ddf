// Choice of a context scheme for a model and a sequence: the one that moves the fewest bytes, among the
// schemes that balance the work.
//
// Pure: every rank chooses the same scheme. Thread safety: any thread may call.
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
  // "ulysses: 12.00 MiB to a rank in an attention's forward and backward; gather: 18.00 MiB; …".
  std::string reason;
};

// One scheme for every Ulysses degree that divides `ranks`, the highest degree first: Ulysses, then hybrids
// that gather, then gather. All but Ulysses have `balance`.
std::vector<ContextScheme> SchemesByDegree(int ranks, LoadBalance balance);

// The schemes that sparse attention can have: gather with `balance`. REQUIRES: it is not a query exchange.
std::vector<ContextScheme> SparseSchemes(LoadBalance balance);

// Returns the scheme that moves the fewest bytes, the first of equal ones. The bytes of a scheme are the most
// that any rank receives in forward and backward. A scheme whose busiest rank has more than 1.25 times the
// mean work is chosen only if all schemes have that; heads that divide badly are a cause. Errors:
// kInvalidArgument (SequenceLayout::Create; no scheme; no ranks; ContextScheme::Validate of any scheme, or
// ValidateSparse if the shape is that of sparse attention).
absl::StatusOr<SchemeChoice> ChooseAmong(absl::Span<const ContextScheme> schemes, const AttentionShape& shape,
                                         const AttentionMask& mask,
                                         absl::Span<const int64_t> document_lengths, int ranks);

// Chooses among SchemesByDegree, or for sparse attention among SparseSchemes, with head-tail balance if the
// mask is causal. Of equal schemes the higher degree wins, since it holds less memory. Rings are not
// considered: they move more bytes than gathers and serve sequences whose gathered keys and values do not fit
// in memory.
absl::StatusOr<SchemeChoice> ChooseScheme(const AttentionShape& shape, const AttentionMask& mask,
                                          absl::Span<const int64_t> document_lengths, int ranks);

}  // namespace weft
