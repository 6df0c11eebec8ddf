#include "sharding/plan/execution_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

PassEvent B(int group) { return {group, PassEvent::Kind::kBegin}; }
PassEvent E(int group) { return {group, PassEvent::Kind::kEnd}; }

// Three groups in a row inside the root.
std::vector<PassEvent> Row() { return {B(0), B(1), E(1), B(2), E(2), B(3), E(3), E(0)}; }

// Visits `event` as a rank does, and returns the events that the rank missed before it.
std::vector<PassEvent> VisitAfterMissed(ExecutionOrder& order, PassEvent event) {
  std::vector<PassEvent> missed;
  while (const auto next = order.TakeMissed(event)) missed.push_back(*next);
  order.Visit(event);
  return missed;
}

TEST(ModuleOrder, NestsGroupsLikeTheirModules) {
  EXPECT_EQ(ModuleOrder({-1, 0, 0, 0}), Row());
  EXPECT_THAT(ModuleOrder({-1}), ElementsAre(B(0), E(0)));
  EXPECT_THAT(ModuleOrder({-1, 0, 1, 1, 0}),
              ElementsAre(B(0), B(1), B(2), E(2), B(3), E(3), E(1), B(4), E(4), E(0)));
}

TEST(ModuleOrder, IsReversedForBackward) {
  EXPECT_THAT(Reversed(ModuleOrder({-1, 0, 1})), ElementsAre(B(0), B(1), B(2), E(2), E(1), E(0)));
  EXPECT_THAT(Reversed(ModuleOrder({-1, 0, 0})), ElementsAre(B(0), B(2), E(2), B(1), E(1), E(0)));
}

TEST(UnvisitedBeside, HasTheOtherGroupsOfAList) {
  const std::vector<std::string> experts = {"net", "experts.0", "experts.1", "experts.2"};
  EXPECT_THAT(UnvisitedBeside({{B(0), B(2), E(2), E(0)}}, Row(), experts), ElementsAre(1, 3));
  EXPECT_THAT(UnvisitedBeside(Row(), Row(), experts), IsEmpty());
}

TEST(UnvisitedBeside, HasNoPartOfTheModelThatWasLeftOutWhole) {
  const std::vector<PassEvent> first = {B(0), B(1), E(1), E(0)};
  EXPECT_THAT(UnvisitedBeside(first, Row(), {{"net", "text.0", "vision.0", "vision.1"}}), IsEmpty());
  EXPECT_THAT(UnvisitedBeside(first, Row(), {{"net", "text", "vision", "1"}}), IsEmpty());
  EXPECT_THAT(UnvisitedBeside({{B(0), E(0)}}, Row(), {{"net", "layers.0", "layers.1", "layers.2"}}),
              IsEmpty());
}

TEST(UnvisitedBeside, HasAllInsideOfItsGroups) {
  const std::vector<std::string> names = {"net", "experts.0", "experts.0.up", "experts.1", "experts.1.up"};
  EXPECT_THAT(UnvisitedBeside({{B(0), B(1), B(2), E(2), E(1), E(0)}}, ModuleOrder({-1, 0, 1, 0, 3}), names),
              ElementsAre(3, 4));
}

TEST(WithGroups, AddsGroupsWhereTheModulesHaveThem) {
  EXPECT_EQ(WithGroups({B(0), B(2), E(2), E(0)}, {1, 3}, Row()), Row());
  EXPECT_EQ(WithGroups({B(0), B(2), E(2), E(0)}, {1, 3}, Reversed(Row())), Reversed(Row()));
  EXPECT_THAT(WithGroups({B(0), B(2), E(2), E(0)}, {3}, Row()),
              ElementsAre(B(0), B(2), E(2), B(3), E(3), E(0)));
  // Visited in another order than that of the modules, and twice.
  EXPECT_THAT(WithGroups({B(0), B(3), E(3), B(1), E(1), B(3), E(3), E(0)}, {2}, Row()),
              ElementsAre(B(0), B(3), E(3), B(1), E(1), B(2), E(2), B(3), E(3), E(0)));
  const std::vector<PassEvent> nested = ModuleOrder({-1, 0, 1, 0, 3});
  EXPECT_EQ(WithGroups({B(0), B(1), B(2), E(2), E(1), E(0)}, {3, 4}, nested), nested);
  EXPECT_EQ(WithGroups({B(0), B(3), B(4), E(4), E(3), E(0)}, {1, 2}, nested), nested);
}

TEST(WithGroups, LeavesOutGroupsOfParentsThatWereNotVisited) {
  const std::vector<PassEvent> nested = ModuleOrder({-1, 0, 1, 0, 3});
  EXPECT_THAT(WithGroups({B(0), B(1), E(1), E(0)}, {2, 4}, nested),
              ElementsAre(B(0), B(1), B(2), E(2), E(1), E(0)));
}

TEST(ExecutionOrder, MissesNoEventInTheExpectedPass) {
  ExecutionOrder order(Row());
  for (int pass = 0; pass < 2; ++pass) {
    order.Begin();
    for (const PassEvent event : Row()) EXPECT_THAT(VisitAfterMissed(order, event), IsEmpty());
    EXPECT_EQ(order.visited(), Row());
  }
}

TEST(ExecutionOrder, ReturnsTheMissedEventsBeforeAnEvent) {
  ExecutionOrder order(Row());
  order.Begin();
  VisitAfterMissed(order, B(0));
  EXPECT_THAT(VisitAfterMissed(order, B(3)), ElementsAre(B(1), E(1), B(2), E(2)));
  EXPECT_THAT(VisitAfterMissed(order, E(3)), IsEmpty());
  EXPECT_THAT(VisitAfterMissed(order, E(0)), IsEmpty());
  EXPECT_THAT(order.visited(), ElementsAre(B(0), B(3), E(3), E(0)));
}

TEST(ExecutionOrder, ReturnsAllMissedEventsAtTheEndOfAPass) {
  ExecutionOrder order(Row());
  order.Begin();
  VisitAfterMissed(order, B(0));
  EXPECT_THAT(VisitAfterMissed(order, E(0)), ElementsAre(B(1), E(1), B(2), E(2), B(3), E(3)));
}

TEST(ExecutionOrder, AcceptsUnexpectedEventsWithoutAChangeOfOrder) {
  ExecutionOrder order(Row());
  order.Begin();
  VisitAfterMissed(order, B(0));
  VisitAfterMissed(order, B(2));
  VisitAfterMissed(order, E(2));
  EXPECT_THAT(VisitAfterMissed(order, B(1)), IsEmpty());
  EXPECT_THAT(VisitAfterMissed(order, E(1)), IsEmpty());
  EXPECT_THAT(VisitAfterMissed(order, B(7)), IsEmpty());
  EXPECT_THAT(VisitAfterMissed(order, B(3)), IsEmpty());
}

TEST(ExecutionOrder, DistinguishesRepeatedVisitsByTheirPosition) {
  ExecutionOrder order({B(0), B(1), E(1), B(2), E(2), B(1), E(1), E(0)});
  order.Begin();
  VisitAfterMissed(order, B(0));
  VisitAfterMissed(order, B(1));
  EXPECT_TRUE(order.Expects(E(1)));
  VisitAfterMissed(order, E(1));
  EXPECT_TRUE(order.Expects(E(1)));
  EXPECT_THAT(VisitAfterMissed(order, B(1)), ElementsAre(B(2), E(2)));
  VisitAfterMissed(order, E(1));
  EXPECT_FALSE(order.Expects(E(1)));
}

TEST(PrefetchAcrossBackwardStart, ListsTheFirstGroupsOfBackwardOnceTheLastGroupOfForwardHasBegun) {
  const std::vector<PassEvent> row = ModuleOrder({-1, 0, 0, 0, 0});
  const ExecutionOrder backward(Reversed(row));
  ExecutionOrder forward(row);
  forward.Begin();
  for (const PassEvent event : row) {
    VisitAfterMissed(forward, event);
    const bool last_has_begun = forward.Next(1).empty();
    for (int depth = 0; depth <= 4; ++depth) {
      std::vector<int> prefetched;  // Backward begins with group 4 and already holds `depth` more.
      for (int group = 4 - 1 - depth; group >= 1 && std::ssize(prefetched) < depth; --group)
        prefetched.push_back(group);
      EXPECT_EQ(PrefetchAcrossBackwardStart(forward, backward, depth),
                last_has_begun ? prefetched : std::vector<int>())
          << depth;
    }
  }
}

TEST(ExecutionOrder, ListsTheNextGroupsUpToTheDepth) {
  ExecutionOrder order(Row());
  order.Begin();
  VisitAfterMissed(order, B(0));
  EXPECT_THAT(order.Next(0), IsEmpty());
  EXPECT_THAT(order.Next(2), ElementsAre(1, 2));
  VisitAfterMissed(order, B(2));
  EXPECT_THAT(order.Next(2), ElementsAre(3));
  EXPECT_THAT(order.First(3), ElementsAre(0, 1, 2));  // Independent of the position in the pass.
}

TEST(ExecutionOrder, FollowsTheSettledOrder) {
  ExecutionOrder order(Row());
  EXPECT_FALSE(order.settled());
  order.Settle({B(0), B(3), E(3), E(0)});
  EXPECT_TRUE(order.settled());
  order.Begin();
  VisitAfterMissed(order, B(0));
  EXPECT_THAT(order.Next(2), ElementsAre(3));
  EXPECT_THAT(VisitAfterMissed(order, E(0)), ElementsAre(B(3), E(3)));
}

}  // namespace
}  // namespace weft::testing
