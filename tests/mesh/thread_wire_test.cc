#include <cstdint>
#include <memory>

#include <gtest/gtest.h>

#include "tests/mesh/wire_conformance.h"
#include "tests/support/thread_ranks.h"

namespace weft {
namespace {

using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

class ThreadWire : public ::testing::TestWithParam<int> {
 protected:
  // Links do not care which ranks share a node.
  void Run(absl::Status (*body)(Bootstrap&)) { RunRanks(NodeMap::RanksPerNode(GetParam(), 2), body); }
};

TEST_P(ThreadWire, DeliversEveryMessage) { Run(weft::testing::DeliversEveryMessage); }
TEST_P(ThreadWire, MatchesInOrderPerPeerAndTag) { Run(weft::testing::MatchesInOrderPerPeerAndTag); }
TEST_P(ThreadWire, DeliversNotesInOrder) { Run(weft::testing::DeliversNotesInOrder); }
TEST_P(ThreadWire, KeepsLinksApart) { Run(weft::testing::KeepsLinksApart); }
TEST_P(ThreadWire, ForgetsCancelledReceives) { Run(weft::testing::ForgetsCancelledReceives); }
TEST_P(ThreadWire, FinishesCancelledReceivesThatArrive) {
  Run(weft::testing::FinishesCancelledReceivesThatArrive);
}
TEST_P(ThreadWire, ReportsLengthsThatDiffer) { Run(weft::testing::ReportsLengthsThatDiffer); }
TEST_P(ThreadWire, TakesMessagesUpToTheLengthThatTheReceiveAllows) {
  Run(weft::testing::TakesMessagesUpToTheLengthThatTheReceiveAllows);
}
TEST_P(ThreadWire, GoesWithReceivesUnmatched) { Run(weft::testing::GoesWithReceivesUnmatched); }
TEST_P(ThreadWire, RefusesBadArguments) { Run(weft::testing::RefusesBadArguments); }
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadWire, ::testing::Values(1, 2, 3, 4, 7));

TEST(ThreadWireOnALostPeer, ASendIsDoneOnlyWhenReceivedAndIsTakenBackWithItsLink) {
  const auto ranks = MakeThreadBootstraps(NodeMap::RanksPerNode(2, 1));
  ASSERT_OK_AND_ASSIGN(auto sender, ranks[0]->OpenWire());
  ASSERT_OK_AND_ASSIGN(const auto receiver, ranks[1]->OpenWire());
  auto gone = std::make_unique<int64_t>(1);
  ASSERT_OK_AND_ASSIGN(const auto send, sender->Send(1, 0, gone.get(), sizeof(*gone)));
  ASSERT_OK_AND_ASSIGN(const bool sent, sender->Test(send));
  EXPECT_FALSE(sent);
  sender.reset();
  gone.reset();
  int64_t value = 7;
  ASSERT_OK_AND_ASSIGN(const auto receive,
                       receiver->Receive(0, 0, &value, sizeof(value), WireLink::Length::kExact));
  ASSERT_OK_AND_ASSIGN(const bool received, receiver->Test(receive));
  EXPECT_FALSE(received);
  EXPECT_EQ(value, 7);
}

TEST(ThreadWireOnALostPeer, ItsReceivesTakeNothing) {
  const auto ranks = MakeThreadBootstraps(NodeMap::RanksPerNode(2, 1));
  ASSERT_OK_AND_ASSIGN(const auto sender, ranks[0]->OpenWire());
  ASSERT_OK_AND_ASSIGN(auto receiver, ranks[1]->OpenWire());
  auto gone = std::make_unique<int64_t>(1);
  ASSERT_OK(receiver->Receive(0, 0, gone.get(), sizeof(*gone), WireLink::Length::kExact));
  receiver.reset();
  gone.reset();
  const int64_t value = 7;
  ASSERT_OK_AND_ASSIGN(const auto send, sender->Send(1, 0, &value, sizeof(value)));
  ASSERT_OK_AND_ASSIGN(const bool sent, sender->Test(send));
  EXPECT_FALSE(sent);
  EXPECT_OK(sender->SendNote(1, "nobody reads this"));
}

}  // namespace
}  // namespace weft
