#include <gtest/gtest.h>

#include "tests/mesh/wire_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;
using ::weft::testing::WorldBootstrap;

TEST(MpiWire, DeliversEveryMessage) { EXPECT_OK(weft::testing::DeliversEveryMessage(WorldBootstrap())); }
TEST(MpiWire, MatchesInOrderPerPeerAndTag) {
  EXPECT_OK(weft::testing::MatchesInOrderPerPeerAndTag(WorldBootstrap()));
}
TEST(MpiWire, DeliversNotesInOrder) { EXPECT_OK(weft::testing::DeliversNotesInOrder(WorldBootstrap())); }
TEST(MpiWire, KeepsLinksApart) { EXPECT_OK(weft::testing::KeepsLinksApart(WorldBootstrap())); }
TEST(MpiWire, ForgetsCancelledReceives) {
  EXPECT_OK(weft::testing::ForgetsCancelledReceives(WorldBootstrap()));
}
TEST(MpiWire, FinishesCancelledReceivesThatArrive) {
  EXPECT_OK(weft::testing::FinishesCancelledReceivesThatArrive(WorldBootstrap()));
}
TEST(MpiWire, ReportsLengthsThatDiffer) {
  EXPECT_OK(weft::testing::ReportsLengthsThatDiffer(WorldBootstrap()));
}
TEST(MpiWire, TakesMessagesUpToTheLengthThatTheReceiveAllows) {
  EXPECT_OK(weft::testing::TakesMessagesUpToTheLengthThatTheReceiveAllows(WorldBootstrap()));
}
TEST(MpiWire, GoesWithReceivesUnmatched) {
  EXPECT_OK(weft::testing::GoesWithReceivesUnmatched(WorldBootstrap()));
}
TEST(MpiWire, RefusesBadArguments) { EXPECT_OK(weft::testing::RefusesBadArguments(WorldBootstrap())); }

TEST(MpiWire, RefusesMessagesThatMpiCannotCount) {
  ASSERT_OK_AND_ASSIGN(const auto wire, WorldBootstrap().OpenWire());
  char byte = 0;  // Never read: the size is refused first.
  EXPECT_THAT(wire->Send(0, 0, &byte, (size_t{1} << 30) + 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("split it")));
}

}  // namespace
}  // namespace weft
