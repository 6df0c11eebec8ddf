#include "context_parallel/layouts/query_tails.h"

#include "weft/context_parallel/sequence_layout.h"

namespace weft {

QueryTails::QueryTails(const SequenceParts& sequence) : mirror_(sequence.ranks() - 1 - sequence.own) {
  const TokenRuns& own = sequence.runs();
  const TokenRuns& other = sequence.parts[static_cast<size_t>(mirror_)];
  const auto tail_of = [this, &sequence](const TokenRuns& runs) {
    const int64_t tokens = TokenCount(runs);
    return mirror_ == sequence.own ? TokenRange{.begin = tokens} : EvenPart(tokens, 2, 1);
  };
  kept_ = tail_of(own).begin;
  sent_ = tail_of(own).count;
  received_ = tail_of(other).count;
  kept_runs_ = SliceRuns(own, 0, kept_);
  received_runs_ = SliceRuns(other, tail_of(other).begin, received_);
}

}  // namespace weft
