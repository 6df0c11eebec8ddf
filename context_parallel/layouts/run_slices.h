// Of an outer level: its parts, and which of its queries see a block of keys.
#pragma once

#include <cstdint>

#include "weft/context_parallel/sequence_layout.h"
#include "weft/nn/attention_mask.h"
#include "weft/nn/token_runs.h"

namespace weft {

// The first of the runs of queries that see any key, to the last, in tokens.
TokenRange SeeingQueries(const AttentionMask& mask, const TokenRuns& queries, const TokenRuns& keys);

// `sequence` over groups of `inner` neighbours each, whose tokens lie end to end: the parts of an outer
// level, of which this rank's is its own group's.
SequenceParts OuterParts(const SequenceParts& sequence, int inner);

}  // namespace weft
