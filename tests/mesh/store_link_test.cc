// The link of a bootstrap over a store, on one node and on several.
#include <unistd.h>

#include <cstdlib>
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mesh/support/link_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "weft/mesh/store_bootstrap.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::kTestTimeout;
using ::weft::testing::StatusIs;
using ::weft::testing::WorldBootstrap;

absl::Status Barrier() { return AgreeOnStatus(WorldBootstrap(), absl::OkStatus(), kTestTimeout); }

class StoreLinkConformance : public ::testing::TestWithParam<weft::testing::ConformanceTest> {};

TEST_P(StoreLinkConformance, Holds) { EXPECT_OK(GetParam().body(WorldBootstrap())); }
INSTANTIATE_TEST_SUITE_P(AllTests, StoreLinkConformance,
                         ::testing::ValuesIn(weft::testing::LinkConformance()), weft::testing::NameOf);

TEST(StoreLink, OpensALinkAfterOneRankMissedEarlierLinks) {
  Bootstrap& world = WorldBootstrap();
  if (world.rank() != world.size() - 1) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_THAT(world.OpenLink(absl::Milliseconds(50)),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           HasSubstr(absl::StrCat("rank ", world.size() - 1, " did not arrive"))));
    }
  }
  ASSERT_OK(Barrier());
  EXPECT_OK(weft::testing::OpensALinkAfterSkipping(world));
}

// A rank that is done with a link destroys it while its peers still use theirs.
TEST(StoreLink, AClosedLinkFailsNeitherControlMessagesNorReceives) {
  Bootstrap& world = WorldBootstrap();
  ASSERT_OK_AND_ASSIGN(auto link, world.OpenLink(kTestTimeout));
  for (int peer = 0; peer < world.size(); ++peer) ASSERT_OK(link->SendControlMessage(peer, "hello"));
  for (int heard = 0; heard < world.size();) {
    ASSERT_OK(link->Poll());
    ASSERT_OK_AND_ASSIGN(const auto message, link->PollControlMessage());
    heard += message ? 1 : 0;
  }
  while (link->HasUnsentControlMessages()) ASSERT_OK(link->Poll());
  char byte = 0;
  WireLink::RequestId pending = 0;
  if (world.rank() != 0) {
    ASSERT_OK_AND_ASSIGN(pending, link->Receive(0, 3, &byte, 1, WireLink::Length::kExact));
  }
  ASSERT_OK(Barrier());
  if (world.rank() == 0) link.reset();
  ASSERT_OK(Barrier());
  if (world.rank() != 0) {
    for (int round = 0; round < 1000; ++round) {
      ASSERT_OK(link->Poll());
      ASSERT_OK_AND_ASSIGN(const auto message, link->PollControlMessage());
      EXPECT_FALSE(message.has_value());
      ASSERT_OK_AND_ASSIGN(const bool done, link->Test(pending));
      EXPECT_FALSE(done);
      ASSERT_OK(link->SendControlMessage(0, "are you there?"));
      world.runtime().Yield();
    }
    EXPECT_TRUE(link->Cancel(pending));
    while (link->HasUnsentControlMessages()) ASSERT_OK(link->Poll());
  }
  EXPECT_OK(Barrier());
}

// A child that destroys its copy of a link must not close connections of the parent.
TEST(StoreLink, AForkedChildLeavesTheLinkIntact) {
  Bootstrap& world = WorldBootstrap();
  ASSERT_OK_AND_ASSIGN(auto link, world.OpenLink(kTestTimeout));
  const auto exchange = [&](int64_t sent) {
    const int next = (world.rank() + 1) % world.size();
    const int previous = (world.rank() + world.size() - 1) % world.size();
    int64_t received = -1;
    ASSERT_OK_AND_ASSIGN(const auto receive,
                         link->Receive(previous, 1, &received, sizeof(received), WireLink::Length::kExact));
    ASSERT_OK_AND_ASSIGN(const auto send, link->Send(next, 1, &sent, sizeof(sent)));
    for (const auto request : {receive, send}) {
      for (bool done = false; !done;) {
        ASSERT_OK(link->Poll());
        ASSERT_OK_AND_ASSIGN(done, link->Test(request));
      }
    }
    EXPECT_EQ(received, sent);
  };
  exchange(1);
  ASSERT_OK(Barrier());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    link.reset();
    std::_Exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  exchange(2);
  EXPECT_OK(Barrier());
}

TEST(StoreLink, NamesANetworkThatDoesNotExist) {
  ASSERT_OK_AND_ASSIGN(StoreBootstrapOptions options, StoreBootstrapOptions::FromEnvironment());
  options.prefix = "wrong-network";
  options.network = "no-such-device";
  options.node_id = absl::StrCat("node of ", options.rank);
  ASSERT_OK_AND_ASSIGN(const auto store, OpenFileStore(std::getenv("WEFT_STORE")));
  ASSERT_OK_AND_ASSIGN(const auto other, MakeStoreBootstrap(store, options));
  if (other->size() > 1) {
    EXPECT_THAT(other->OpenLink(kTestTimeout),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("no-such-device"), HasSubstr("WEFT_NETWORK"))));
  }
  EXPECT_OK(Barrier());
}

}  // namespace
}  // namespace weft
