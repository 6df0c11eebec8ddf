#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/mesh/tcp/transport_choice.h"
#include "tests/mesh/support/link_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/mesh/runtime.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::weft::testing::kTestTimeout;
using ::weft::testing::ScopedVariable;
using ::weft::testing::StatusIs;
using ::weft::testing::WorldBootstrap;

const std::string kMpiAlone = "MPI \\([^)]+\\)";

absl::StatusOr<std::unique_ptr<Bootstrap>> MakeWorldOver(MpiTransport transport) {
  MpiBootstrapOptions options;
  options.transport = transport;
  return MakeMpiBootstrap(options);
}

class MpiLinkConformance : public ::testing::TestWithParam<weft::testing::ConformanceTest> {};

TEST_P(MpiLinkConformance, Holds) {
  ASSERT_OK_AND_ASSIGN(const auto world, MakeWorldOver(MpiTransport::kMpi));
  EXPECT_OK(GetParam().body(*world));
}
INSTANTIATE_TEST_SUITE_P(AllTests, MpiLinkConformance, ::testing::ValuesIn(weft::testing::LinkConformance()),
                         weft::testing::NameOf);

class MpiTcpLinkConformance : public ::testing::TestWithParam<weft::testing::ConformanceTest> {};

TEST_P(MpiTcpLinkConformance, Holds) {
  ASSERT_OK_AND_ASSIGN(const auto world, MakeWorldOver(MpiTransport::kTcp));
  EXPECT_OK(GetParam().body(*world));
}
INSTANTIATE_TEST_SUITE_P(AllTests, MpiTcpLinkConformance,
                         ::testing::ValuesIn(weft::testing::LinkConformance()), weft::testing::NameOf);

// The other ranks give up two links at their deadlines. A later one works.
void OpenALinkAfterOneRankMissedEarlierLinks(Bootstrap& bootstrap, const std::string& missing) {
  const int late = bootstrap.size() - 1;
  if (bootstrap.rank() != late) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_THAT(bootstrap.OpenLink(absl::Milliseconds(50)),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           AllOf(HasSubstr("opening a link between nodes"), HasSubstr(missing))));
    }
  }
  ASSERT_OK(AgreeOnStatus(WorldBootstrap(), absl::OkStatus(), kTestTimeout));
  EXPECT_OK(weft::testing::OpensALinkAfterSkipping(bootstrap));
}

TEST(MpiLink, OpensALinkAfterOneRankMissedEarlierLinks) {
  ASSERT_OK_AND_ASSIGN(const auto world, MakeWorldOver(MpiTransport::kMpi));
  OpenALinkAfterOneRankMissedEarlierLinks(*world, "not all ranks arrived");
}

TEST(MpiTcpLink, OpensALinkAfterOneRankMissedEarlierLinks) {
  ASSERT_OK_AND_ASSIGN(const auto world, MakeWorldOver(MpiTransport::kTcp));
  OpenALinkAfterOneRankMissedEarlierLinks(*world,
                                          absl::StrCat(world->size() - 1, " did not arrive within 50ms"));
}

TEST(MpiTcpLink, HasNoRendezvousInPlaceOfMpis) {
  ASSERT_OK_AND_ASSIGN(const auto world, MakeWorldOver(MpiTransport::kTcp));
  ASSERT_OK_AND_ASSIGN(const auto link, world->OpenLink(kTestTimeout));
  EXPECT_FALSE(link->has_rendezvous());
  ASSERT_OK_AND_ASSIGN(const auto mpi_world, MakeWorldOver(MpiTransport::kMpi));
  ASSERT_OK_AND_ASSIGN(const auto mpi, mpi_world->OpenLink(kTestTimeout));
  EXPECT_TRUE(mpi->has_rendezvous());
}

TEST(MpiTcpLink, OutlivesItsBootstrap) {
  ASSERT_OK_AND_ASSIGN(auto world, MakeWorldOver(MpiTransport::kTcp));
  ASSERT_OK_AND_ASSIGN(const auto link, world->OpenLink(kTestTimeout));
  world.reset();
  const int next = (WorldBootstrap().rank() + 1) % WorldBootstrap().size();
  ASSERT_OK(link->SendControlMessage(next, "still here"));
  const SystemRuntime clock;
  const Deadline deadline(clock, kTestTimeout);
  std::optional<WireLink::ControlMessage> received;
  while ((!received || link->HasUnsentControlMessages()) && !deadline.HasPassed()) {
    ASSERT_OK(link->Poll());
    if (received) continue;
    ASSERT_OK_AND_ASSIGN(received, link->PollControlMessage());
  }
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->bytes, "still here");
  ASSERT_OK(AgreeOnStatus(WorldBootstrap(), absl::OkStatus(), kTestTimeout));
}

TEST(MpiTcpLink, ANetworkThatDoesNotExistIsAnErrorOnEveryRank) {
  MpiBootstrapOptions options;
  options.transport = MpiTransport::kTcp;
  const int last = WorldBootstrap().size() - 1;
  if (WorldBootstrap().rank() == last) options.network = "no-such-device";
  const std::string rank = WorldBootstrap().rank() == last ? "" : absl::StrCat("rank ", last, ": ");
  EXPECT_THAT(
      MakeMpiBootstrap(options),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr(absl::StrCat(rank, "this host has no network interface 'no-such-device'")),
                     HasSubstr("WEFT_NETWORK"))));
}

// On one node, no message travels, and nothing is chosen.
TEST(MpiLinks, TravelOverSocketsBetweenHostsOfOneNetwork) {
  ASSERT_OK_AND_ASSIGN(const auto chosen, MakeWorldOver(MpiTransport::kAuto));
  ASSERT_OK_AND_ASSIGN(const internal::TransportFacts own,
                       internal::TransportFacts::OfThisHost(internal::MpiSettings::Read(environ), ""));
  std::string expected = "TCP sockets";
  if (chosen->node_map().node_count() == 1)
    expected = kMpiAlone;
  else if (!own.reason_for_mpi.empty())  // This machine has a device for RDMA, or the test such a variable.
    expected = absl::StrCat(kMpiAlone, ", because of ", own.reason_for_mpi, " on the host of rank 0");
  EXPECT_THAT(chosen->TransportName(), MatchesRegex(expected));
  EXPECT_OK(weft::testing::OpensALinkAfterSkipping(*chosen));
  ASSERT_OK_AND_ASSIGN(const auto named, MakeWorldOver(MpiTransport::kMpi));
  EXPECT_THAT(named->TransportName(), MatchesRegex(kMpiAlone));
}

TEST(MpiLinks, TravelOverMpiIfOneRankHasASettingOfItsTransport) {
  const int last = WorldBootstrap().size() - 1;
  const ScopedVariable variable("OMPI_MCA_btl", WorldBootstrap().rank() == last ? "tcp,self" : nullptr);
  ASSERT_OK_AND_ASSIGN(const auto bootstrap, MakeWorldOver(MpiTransport::kAuto));
  const std::string place = absl::StrCat(" on the host of rank ", last);
  EXPECT_THAT(bootstrap->TransportName(),
              MatchesRegex(bootstrap->node_map().node_count() == 1
                               ? kMpiAlone
                               : absl::StrCat(kMpiAlone, ", because of the .+", place)));
}

TEST(MpiLink, RejectsMessagesAboveMpisCountLimit) {
  ASSERT_OK_AND_ASSIGN(const auto bootstrap, MakeWorldOver(MpiTransport::kMpi));
  ASSERT_OK_AND_ASSIGN(const auto link, bootstrap->OpenLink(kTestTimeout));
  char byte = 0;  // Not read, because Send checks the size first.
  EXPECT_THAT(link->Send(0, 0, &byte, (size_t{1} << 30) + 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("split it")));
}

}  // namespace
}  // namespace weft
