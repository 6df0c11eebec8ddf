#include "sharding/plan/group_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A tree of modules with one parameter each, "<name>.w".
class Tree : public Module {
 public:
  explicit Tree(std::string name) : Module(std::move(name)) { AddParameter("w", {2}, {}); }

  Tree* Add(std::string child) { return AddChild(std::make_unique<Tree>(std::move(child))); }
  void Tie(const Tree& other) { ShareParameter(other.parameters().front()); }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation&, const Tensors& inputs) override { return inputs; }
  absl::StatusOr<Tensors> BackwardImpl(Invocation&, const Tensors& gradients) override { return gradients; }
};

std::vector<std::string> Names(const ModuleGroup& group) {
  std::vector<std::string> names;
  for (const auto& parameter : group.members.parameters) names.push_back(parameter->name);
  return names;
}

TEST(GroupPlan, GivesTheRootWhatNoBlockHolds) {
  Tree root("net");
  Tree* first = root.Add("first");
  Tree* second = root.Add("second");
  root.Add("head");
  first->Add("first.inner");
  ASSERT_OK_AND_ASSIGN(const auto groups, PlanGroups(root, {second, first}));
  ASSERT_EQ(groups.size(), 3);
  EXPECT_EQ(groups[0].module, &root);
  EXPECT_THAT(Names(groups[0]), ElementsAre("net.w", "head.w"));
  EXPECT_THAT(Names(groups[1]), ElementsAre("first.w", "first.inner.w"));
  EXPECT_THAT(Names(groups[2]), ElementsAre("second.w"));
}

TEST(GroupPlan, MakesABlockInsideABlockAGroupOfItsOwn) {
  Tree root("net");
  Tree* outer = root.Add("outer");
  Tree* inner = outer->Add("inner");
  outer->Add("last");
  ASSERT_OK_AND_ASSIGN(const auto groups, PlanGroups(root, {outer, inner}));
  EXPECT_THAT(Names(groups[1]), ElementsAre("outer.w", "last.w"));
  EXPECT_THAT(Names(groups[2]), ElementsAre("inner.w"));
  EXPECT_EQ(groups[0].members.parent, -1);
  EXPECT_EQ(groups[1].members.parent, 0);
  EXPECT_EQ(groups[2].members.parent, 1);
}

TEST(GroupPlan, ListsATiedParameterOfOneGroupOnce) {
  Tree root("net");
  Tree* head = root.Add("head");
  head->Tie(root);
  ASSERT_OK_AND_ASSIGN(const auto groups, PlanGroups(root, {}));
  EXPECT_THAT(Names(groups[0]), ElementsAre("net.w", "head.w"));
}

TEST(GroupPlan, RefusesAParameterOfTwoGroups) {
  Tree root("net");
  Tree* first = root.Add("first");
  root.Add("second")->Tie(*first);
  EXPECT_THAT(PlanGroups(root, {first}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'first.w'"), HasSubstr("'first' and 'net'"))));
}

TEST(GroupPlan, RefusesBlocksThatAreRepeatedOrElsewhere) {
  Tree root("net");
  Tree* block = root.Add("block");
  Tree elsewhere("elsewhere");
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(PlanGroups(root, {block, block}), StatusIs(invalid, HasSubstr("'block' is listed twice")));
  EXPECT_THAT(PlanGroups(root, {&root}), StatusIs(invalid, HasSubstr("'net' is the root")));
  EXPECT_THAT(PlanGroups(root, {&elsewhere}), StatusIs(invalid, HasSubstr("'elsewhere' is not below")));
}

}  // namespace
}  // namespace weft::testing
