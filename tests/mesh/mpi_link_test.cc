#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/mesh/support/link_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::kTestTimeout;
using ::weft::testing::StatusIs;
using ::weft::testing::WorldBootstrap;

class MpiLinkConformance : public ::testing::TestWithParam<weft::testing::ConformanceTest> {};

TEST_P(MpiLinkConformance, Holds) { EXPECT_OK(GetParam().body(WorldBootstrap())); }
INSTANTIATE_TEST_SUITE_P(AllTests, MpiLinkConformance, ::testing::ValuesIn(weft::testing::LinkConformance()),
                         weft::testing::NameOf);

// The other ranks give up two links at their deadlines. Those links stay pending, and a later one works.
TEST(MpiLink, OpensALinkAfterOneRankMissedEarlierLinks) {
  Bootstrap& world = WorldBootstrap();
  const bool late = world.rank() == world.size() - 1;
  if (!late) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_EQ(world.OpenLink(absl::Milliseconds(50)).status().code(), absl::StatusCode::kDeadlineExceeded);
    }
  }
  ASSERT_OK(AgreeOnStatus(world, absl::OkStatus(), kTestTimeout));
  EXPECT_OK(weft::testing::OpensALinkAfterSkipping(world));
}

TEST(MpiLink, RejectsMessagesAboveMpisCountLimit) {
  ASSERT_OK_AND_ASSIGN(const auto link, WorldBootstrap().OpenLink(kTestTimeout));
  char byte = 0;  // Not read, because Send checks the size first.
  EXPECT_THAT(link->Send(0, 0, &byte, (size_t{1} << 30) + 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("split it")));
}

}  // namespace
}  // namespace weft
