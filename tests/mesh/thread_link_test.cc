#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/mesh/support/link_conformance.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft {
namespace {

using ::weft::testing::kTestTimeout;
using ::weft::testing::RunRanks;

class ThreadLinkConformance : public ::testing::TestWithParam<weft::testing::ConformanceTest> {};

// Links work the same for local and remote peers.
TEST_P(ThreadLinkConformance, Holds) {
  for (const int ranks : {1, 2, 3, 4, 7}) RunRanks(NodeMap::RanksPerNode(ranks, 2), GetParam().body);
}
INSTANTIATE_TEST_SUITE_P(AllTests, ThreadLinkConformance,
                         ::testing::ValuesIn(weft::testing::LinkConformance()), weft::testing::NameOf);

class ThreadLink : public ::testing::TestWithParam<int> {};

TEST_P(ThreadLink, OpensALinkAfterSomeRanksMissedEarlierLinks) {
  RunRanks(NodeMap::RanksPerNode(GetParam(), 2), [](Bootstrap& bootstrap) -> absl::Status {
    std::vector<std::unique_ptr<WireLink>> links(static_cast<size_t>(bootstrap.rank()));
    for (auto& link : links) {
      WEFT_ASSIGN_OR_RETURN(link, bootstrap.OpenLink(kTestTimeout));
    }
    return weft::testing::OpensALinkAfterSkipping(bootstrap);
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadLink, ::testing::Values(1, 2, 3, 4, 7));

TEST(ThreadLinkOnALostPeer, AnUnmatchedSendNeverCompletesAndIsWithdrawnWithItsLink) {
  const auto ranks = MakeThreadBootstraps(NodeMap::RanksPerNode(2, 1));
  ASSERT_OK_AND_ASSIGN(auto sender, ranks[0]->OpenLink(kTestTimeout));
  ASSERT_OK_AND_ASSIGN(const auto receiver, ranks[1]->OpenLink(kTestTimeout));
  auto buffer = std::make_unique<int64_t>(1);
  ASSERT_OK_AND_ASSIGN(const auto send, sender->Send(1, 0, buffer.get(), sizeof(*buffer)));
  ASSERT_OK_AND_ASSIGN(const bool sent, sender->Test(send));
  EXPECT_FALSE(sent);
  sender.reset();
  buffer.reset();
  int64_t value = 7;
  ASSERT_OK_AND_ASSIGN(const auto receive,
                       receiver->Receive(0, 0, &value, sizeof(value), WireLink::Length::kExact));
  ASSERT_OK_AND_ASSIGN(const bool received, receiver->Test(receive));
  EXPECT_FALSE(received);
  EXPECT_EQ(value, 7);
}

TEST(ThreadLinkOnALostPeer, ReceivesOfADestroyedLinkMatchNothing) {
  const auto ranks = MakeThreadBootstraps(NodeMap::RanksPerNode(2, 1));
  ASSERT_OK_AND_ASSIGN(const auto sender, ranks[0]->OpenLink(kTestTimeout));
  ASSERT_OK_AND_ASSIGN(auto receiver, ranks[1]->OpenLink(kTestTimeout));
  auto buffer = std::make_unique<int64_t>(1);
  ASSERT_OK(receiver->Receive(0, 0, buffer.get(), sizeof(*buffer), WireLink::Length::kExact));
  receiver.reset();
  buffer.reset();
  const int64_t value = 7;
  ASSERT_OK_AND_ASSIGN(const auto send, sender->Send(1, 0, &value, sizeof(value)));
  ASSERT_OK_AND_ASSIGN(const bool sent, sender->Test(send));
  EXPECT_FALSE(sent);
  EXPECT_OK(sender->SendControlMessage(1, "never read"));
}

}  // namespace
}  // namespace weft
