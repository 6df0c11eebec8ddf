#include "src/nn/modules/sequence_runs.h"

#include <absl/strings/str_cat.h>

namespace weft {

absl::StatusOr<TokenRuns> SequenceRuns(const Invocation& invocation, int64_t tokens,
                                       const std::string& module) {
  if (invocation.sequence() == nullptr) return WholeSequence(tokens);
  const TokenRuns& runs = invocation.sequence()->runs();
  if (TokenCount(runs) != tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        module, " was given ", tokens, " tokens, but the invocation's sequence has ", TokenCount(runs),
        " on this rank; call SetSequence with the division by which the inputs were split"));
  }
  return runs;
}

}  // namespace weft
