#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/mesh/support/wire_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;
using ::weft::testing::WorldBootstrap;

class MpiWireConformance : public ::testing::TestWithParam<weft::testing::ConformanceTest> {};

TEST_P(MpiWireConformance, Holds) { EXPECT_OK(GetParam().body(WorldBootstrap())); }
INSTANTIATE_TEST_SUITE_P(AllTests, MpiWireConformance, ::testing::ValuesIn(weft::testing::WireConformance()),
                         weft::testing::NameOf);

// The other ranks give up two links at their deadlines. Those links stay pending, and a later one works.
TEST(MpiWire, OpensALinkAfterOneRankMissedEarlierLinks) {
  Bootstrap& world = WorldBootstrap();
  const bool late = world.rank() == world.size() - 1;
  if (!late) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_EQ(world.OpenWire(absl::Milliseconds(50)).status().code(), absl::StatusCode::kDeadlineExceeded);
    }
  }
  ASSERT_OK(AgreeOnStatus(world, absl::OkStatus(), absl::Seconds(60)));
  EXPECT_OK(weft::testing::OpensALinkAfterSkipping(world));
}

TEST(MpiWire, RejectsMessagesAboveMpisCountLimit) {
  ASSERT_OK_AND_ASSIGN(const auto wire, WorldBootstrap().OpenWire(absl::Seconds(60)));
  char byte = 0;  // Not read, because Send checks the size first.
  EXPECT_THAT(wire->Send(0, 0, &byte, (size_t{1} << 30) + 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("split it")));
}

}  // namespace
}  // namespace weft
