#include "src/nn/base/sequence_runs.h"

#include <optional>

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

absl::Status CheckPairMask(const Invocation& invocation, const std::string& module) {
  if (invocation.pair_mask() == nullptr || invocation.sequence() == nullptr) return absl::OkStatus();
  std::optional<int64_t> document;
  for (const TokenRuns& part : invocation.sequence()->parts) {
    for (const TokenRun& run : part) {
      if (run.count == 0) continue;
      if (document.value_or(run.document) != run.document) {
        return absl::InvalidArgumentError(
            absl::StrCat(module,
                         " has a PairMask and a sequence of several documents, whose positions it could not "
                         "tell apart; let the PairMask separate the documents, and set a sequence of one "
                         "document"));
      }
      document = run.document;
    }
  }
  return absl::OkStatus();
}

}  // namespace weft
