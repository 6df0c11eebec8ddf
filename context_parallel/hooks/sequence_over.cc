#include "context_parallel/hooks/sequence_over.h"

#include <absl/strings/str_cat.h>

namespace weft {

absl::StatusOr<std::shared_ptr<const SequenceParts>> SequenceOver(const Invocation& invocation, int ranks,
                                                                  int rank, const std::string& user) {
  const std::shared_ptr<const SequenceParts>& sequence = invocation.sequence();
  if (sequence != nullptr && sequence->ranks() == ranks && sequence->own == rank) return sequence;
  return absl::FailedPreconditionError(
      absl::StrCat(user, " is split over ", ranks, " ranks, but the invocation ",
                   sequence == nullptr ? std::string("has no sequence")
                                       : absl::StrCat("has a sequence of ", sequence->ranks(),
                                                      " parts with rank ", sequence->own, " as its own"),
                   ": pass SequenceLayout::Parts(", rank, ") to SetSequence before the pass"));
}

}  // namespace weft
