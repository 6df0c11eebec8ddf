// What every wire promises, as rank bodies that tests of each kind of bootstrap run.
#pragma once

#include <absl/status/status.h>

#include "weft/mesh/bootstrap.h"

namespace weft::testing {

// Messages of many sizes between all pairs arrive whole, whichever end is posted first.
absl::Status DeliversEveryMessage(Bootstrap& bootstrap);
// Messages of one (peer, tag) are matched in the order of posting; tags do not mix.
absl::Status MatchesInOrderPerPeerAndTag(Bootstrap& bootstrap);
// More notes than any ring holds, from all to all, arrive in each sender's order.
absl::Status DeliversNotesInOrder(Bootstrap& bootstrap);
// Two links carry the same tags without meeting.
absl::Status KeepsLinksApart(Bootstrap& bootstrap);
// A cancelled receive takes no message: the next receive gets it.
absl::Status ForgetsCancelledReceives(Bootstrap& bootstrap);
// A receive that is cancelled when its message is on its way is finished, or never touches its buffer again.
absl::Status FinishesCancelledReceivesThatArrive(Bootstrap& bootstrap);
// A receive that is shorter or longer than its message is an error, and the link goes on.
absl::Status ReportsLengthsThatDiffer(Bootstrap& bootstrap);
absl::Status TakesMessagesUpToTheLengthThatTheReceiveAllows(Bootstrap& bootstrap);
// A link goes with receives that nobody will match, at once.
absl::Status GoesWithReceivesUnmatched(Bootstrap& bootstrap);
// Peers, tags and sizes out of range are kInvalidArgument.
absl::Status RefusesBadArguments(Bootstrap& bootstrap);

}  // namespace weft::testing
