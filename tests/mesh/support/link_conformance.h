// Conformance tests of WireLink, run for each kind of bootstrap. All ranks run each function.
#pragma once

#include <vector>

#include <absl/status/status.h>

#include "tests/mesh/support/conformance_test.h"
#include "weft/mesh/bootstrap.h"

namespace weft::testing {

// Messages of many sizes between all pairs of ranks arrive complete, with the send or the receive posted
// first.
absl::Status DeliversEveryMessage(Bootstrap& bootstrap);
// Messages with the same (peer, tag) match in the order of posting. Messages with different tags do not
// match.
absl::Status MatchesInOrderPerPeerAndTag(Bootstrap& bootstrap);
// Control messages between all pairs of ranks arrive in each sender's order, also when there are more of them
// than a ring of receives holds.
absl::Status DeliversControlMessagesInOrder(Bootstrap& bootstrap);
// Messages on two links do not match, even with the same peers and tags.
absl::Status MessagesOfDifferentLinksDoNotMatch(Bootstrap& bootstrap);
// The next receive gets the message that a canceled receive was posted for.
absl::Status CanceledReceivesTakeNoMessage(Bootstrap& bootstrap);
// If a receive is canceled while its message is in flight, it either completes with the message or never
// accesses its buffer again.
absl::Status CancellingAMatchedReceiveIsSafe(Bootstrap& bootstrap);
// A receive with another length than its message's is an error. The link still works afterwards.
absl::Status ReportsDifferentLengths(Bootstrap& bootstrap);
// A kAtMost receive takes messages of every length up to its own.
absl::Status AcceptsMessagesUpToTheReceivesMaximum(Bootstrap& bootstrap);
// A link with unmatched receives can be destroyed without blocking.
absl::Status CanBeDestroyedWithUnmatchedReceives(Bootstrap& bootstrap);
// Ranks that have opened different numbers of links agree on the highest, skip, and open a link that works.
absl::Status OpensALinkAfterSkipping(Bootstrap& bootstrap);
// Peers, tags and sizes out of range return kInvalidArgument.
absl::Status RejectsArgumentsOutOfRange(Bootstrap& bootstrap);

// All of them.
std::vector<ConformanceTest> LinkConformance();

}  // namespace weft::testing
