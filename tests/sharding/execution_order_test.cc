#include "sharding/execution_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ExecutionOrder, PredictsNothingInTheFirstPass) {
  ExecutionOrder order;
  order.Begin({});
  EXPECT_THAT(order.Visit(0, 2), IsEmpty());
  EXPECT_THAT(order.Visit(1, 2), IsEmpty());
  EXPECT_THAT(order.visited(), ElementsAre(0, 1));
}

TEST(ExecutionOrder, PredictsWhatFollowedUpToTheDepth) {
  ExecutionOrder order;
  order.Begin({0, 1, 2, 3});
  EXPECT_THAT(order.Visit(0, 2), ElementsAre(1, 2));
  EXPECT_THAT(order.Visit(1, 0), IsEmpty());
  EXPECT_THAT(order.Visit(2, 2), ElementsAre(3));
  EXPECT_THAT(order.Visit(3, 2), IsEmpty());
}

TEST(ExecutionOrder, TellsRepeatedVisitsApartByTheirPlace) {
  ExecutionOrder order;
  order.Begin({0, 1, 1, 2});
  order.Visit(0, 1);
  EXPECT_THAT(order.Visit(1, 1), ElementsAre(1));
  EXPECT_THAT(order.Visit(1, 1), ElementsAre(2));
}

TEST(ExecutionOrder, PredictsNothingAfterTheFirstDifference) {
  ExecutionOrder order;
  order.Begin({0, 1, 2, 3});
  order.Visit(0, 1);
  EXPECT_THAT(order.Visit(2, 1), IsEmpty());
  EXPECT_THAT(order.Visit(2, 1), IsEmpty());  // Its old place, but no longer the old pass.
  EXPECT_THAT(order.visited(), ElementsAre(0, 2, 2));
}

TEST(ExecutionOrder, PredictsNothingBeyondTheEndOfALongerPass) {
  ExecutionOrder order;
  order.Begin({0});
  order.Visit(0, 1);
  EXPECT_THAT(order.Visit(1, 1), IsEmpty());
}

}  // namespace
}  // namespace weft
