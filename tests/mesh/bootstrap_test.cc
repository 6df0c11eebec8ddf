#include "weft/mesh/bootstrap.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scoped_variable.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "weft/core/status.h"
#include "weft/mesh/thread_bootstrap.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::kTestTimeout;
using ::weft::testing::ScopedVariable;
using ::weft::testing::StatusIs;

TEST(NodeMap, PutsConsecutiveRanksOnTheSameNode) {
  const NodeMap map = NodeMap::RanksPerNode(7, 3);
  EXPECT_THAT(map.node_of_rank, ElementsAre(0, 0, 0, 1, 1, 1, 2));
  EXPECT_EQ(map.size(), 7);
  EXPECT_EQ(map.node_count(), 3);
  EXPECT_THAT(map.RanksOf(1), ElementsAre(3, 4, 5));
  EXPECT_TRUE(map.SameNode(3, 5));
  EXPECT_FALSE(map.SameNode(2, 3));
}

TEST(NodeMap, PutsAllOnOneNode) {
  const NodeMap map = NodeMap::OneNode(3);
  EXPECT_EQ(map.node_count(), 1);
  EXPECT_THAT(map.RanksOf(0), ElementsAre(0, 1, 2));
}

// The next round of the other ranks is not an agreement then.
TEST(AgreeOnStatus, TakesNoRoundOnARankThatHasMissedADeadline) {
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    if (bootstrap.rank() == 0) {
      const absl::Status missed = absl::DeadlineExceededError("rank 1 did not arrive");
      EXPECT_EQ(AgreeOnStatus(bootstrap, missed, kTestTimeout), missed);
    }
    WEFT_ASSIGN_OR_RETURN(const auto blobs,
                          bootstrap.AllGatherBlob(absl::StrCat(bootstrap.rank()), kTestTimeout));
    EXPECT_THAT(blobs, ElementsAre("0", "1"));
    return absl::OkStatus();
  }));
}

TEST(ExchangeBlobs, NamesTheExchangeToWhichARankDoesNotCome) {
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    if (bootstrap.rank() == 1) return absl::OkStatus();
    EXPECT_THAT(ExchangeBlobs(bootstrap, "heap sizes", "1", absl::Milliseconds(1)),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("heap sizes: "), HasSubstr("rank 1 did not arrive"))));
    return absl::OkStatus();
  }));
}

// Programs print statuses by ToString.
TEST(AgreeOnStatus, ReturnsAnErrorThatSaysThatAllRanksHaveIt) {
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    const absl::Status local =
        bootstrap.rank() == 0 ? absl::DataLossError("a broken file") : absl::OkStatus();
    const absl::Status agreed = AgreeOnStatus(bootstrap, local, kTestTimeout);
    EXPECT_THAT(agreed.ToString(), HasSubstr("a broken file [weft.ranks='all']"));
    return absl::OkStatus();
  }));
}

TEST(DefaultTimeout, IsTenMinutesUnlessTheEnvironmentSetsIt) {
  {
    const ScopedVariable unset("WEFT_TIMEOUT_S", nullptr);
    ASSERT_OK_AND_ASSIGN(const absl::Duration timeout, DefaultTimeout());
    EXPECT_EQ(timeout, absl::Minutes(10));
  }
  const ScopedVariable set("WEFT_TIMEOUT_S", "2.5");
  ASSERT_OK_AND_ASSIGN(const absl::Duration timeout, DefaultTimeout());
  EXPECT_EQ(timeout, absl::Milliseconds(2500));
}

TEST(DefaultTimeout, RejectsValuesThatAreNoNumbersOrTooSmall) {
  for (const char* value : {"", "soon", "0", "-3", "inf", "nan", "5 s", "1e-12"}) {
    const ScopedVariable set("WEFT_TIMEOUT_S", value);
    EXPECT_THAT(DefaultTimeout(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("WEFT_TIMEOUT_S")))
        << value;
  }
}

}  // namespace
}  // namespace weft
