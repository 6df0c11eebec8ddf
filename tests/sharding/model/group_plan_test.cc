#include "sharding/model/group_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Module with one parameter, "<name>.w", in a tree of such modules.
class TreeModule : public Module {
 public:
  explicit TreeModule(std::string name) : Module(std::move(name)) { AddParameter("w", {2}, {}); }

  TreeModule* Add(std::string child) { return AddChild(std::make_unique<TreeModule>(std::move(child))); }
  void ShareWeightOf(const TreeModule& other) { ShareParameter(other.parameters().front()); }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation&, const Tensors& inputs) override { return inputs; }
  absl::StatusOr<Tensors> BackwardImpl(Invocation&, const Tensors& gradients) override { return gradients; }
};

std::vector<std::string> Names(const ModuleGroup& group) {
  std::vector<std::string> names;
  for (const auto& parameter : group.members.parameters) names.push_back(parameter->name);
  return names;
}

TEST(GroupPlan, GivesTheRootTheParametersOutsideOfBlocks) {
  TreeModule root("net");
  TreeModule* first = root.Add("first");
  TreeModule* second = root.Add("second");
  root.Add("head");
  first->Add("first.inner");
  ASSERT_OK_AND_ASSIGN(const auto groups, PlanGroups(root, {second, first}));
  ASSERT_EQ(groups.size(), 3);
  EXPECT_THAT(groups[0].modules, ElementsAre(&root));
  EXPECT_THAT(Names(groups[0]), ElementsAre("net.w", "head.w"));
  EXPECT_THAT(Names(groups[1]), ElementsAre("first.w", "first.inner.w"));
  EXPECT_THAT(Names(groups[2]), ElementsAre("second.w"));
}

TEST(GroupPlan, GivesANestedBlockAGroupOfItsOwn) {
  TreeModule root("net");
  TreeModule* outer = root.Add("outer");
  TreeModule* inner = outer->Add("inner");
  outer->Add("last");
  ASSERT_OK_AND_ASSIGN(const auto groups, PlanGroups(root, {outer, inner}));
  EXPECT_THAT(Names(groups[1]), ElementsAre("outer.w", "last.w"));
  EXPECT_THAT(Names(groups[2]), ElementsAre("inner.w"));
  EXPECT_EQ(groups[0].members.parent, -1);
  EXPECT_EQ(groups[1].members.parent, 0);
  EXPECT_EQ(groups[2].members.parent, 1);
}

TEST(GroupPlan, GivesSeveralModulesOneGroup) {
  TreeModule root("net");
  TreeModule* embedding = root.Add("embedding");
  TreeModule* block = root.Add("block");
  TreeModule* inner = block->Add("inner");
  TreeModule* head = root.Add("head");
  head->ShareWeightOf(*embedding);
  // The inner module is part of the block anyway.
  ASSERT_OK_AND_ASSIGN(const auto groups, PlanGroups(root, {{head, embedding}, {inner, block}}));
  ASSERT_EQ(groups.size(), 3);
  EXPECT_THAT(groups[1].modules, ElementsAre(embedding, head));
  EXPECT_EQ(groups[1].members.name, "head+embedding");
  EXPECT_EQ(groups[1].members.modules, 2);
  EXPECT_THAT(Names(groups[1]), ElementsAre("embedding.w", "head.w"));
  EXPECT_THAT(groups[2].modules, ElementsAre(block));
  EXPECT_EQ(groups[2].members.modules, 1);
  EXPECT_THAT(Names(groups[2]), ElementsAre("block.w", "inner.w"));
  EXPECT_EQ(groups[2].members.parent, 1);  // It runs between the modules of the other group.
}

TEST(GroupPlan, RefusesGroupsThatOverlap) {
  TreeModule root("net");
  std::vector<TreeModule*> blocks;
  for (const char* name : {"a", "b", "c", "d"}) blocks.push_back(root.Add(name));
  TreeModule* inner = blocks[0]->Add("inner");
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(PlanGroups(root, {{blocks[0], blocks[2]}, {blocks[1], blocks[3]}}),
              StatusIs(invalid, HasSubstr("'b+d' and 'a+c' overlap")));
  EXPECT_THAT(PlanGroups(root, {blocks[0], {inner, blocks[1]}}),
              StatusIs(invalid, HasSubstr("'inner+b' and 'a' overlap")));
}

TEST(GroupPlan, ListsATiedParameterOfOneGroupOnce) {
  TreeModule root("net");
  TreeModule* head = root.Add("head");
  head->ShareWeightOf(root);
  ASSERT_OK_AND_ASSIGN(const auto groups, PlanGroups(root, {}));
  EXPECT_THAT(Names(groups[0]), ElementsAre("net.w", "head.w"));
}

TEST(GroupPlan, RefusesAParameterOfTwoGroups) {
  TreeModule root("net");
  TreeModule* first = root.Add("first");
  root.Add("second")->ShareWeightOf(*first);
  EXPECT_THAT(PlanGroups(root, {first}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'first.w'"), HasSubstr("'first' and 'net'"))));
}

TEST(GroupPlan, RefusesTwoParametersOfOneName) {
  TreeModule root("net");
  TreeModule* first = root.Add("block");
  TreeModule* second = root.Add("block");
  for (const auto& blocks : std::vector<std::vector<Module*>>{{}, {first, second}}) {
    EXPECT_THAT(PlanGroups(root, blocks), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   HasSubstr("two parameters are named 'block.w'")));
  }
}

TEST(GroupPlan, RefusesRepeatedBlocksAndBlocksOutsideOfTheRoot) {
  TreeModule root("net");
  TreeModule* block = root.Add("block");
  TreeModule unrelated("unrelated");
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(PlanGroups(root, {block, block}), StatusIs(invalid, HasSubstr("'block' is listed twice")));
  EXPECT_THAT(PlanGroups(root, {ModuleBlock({})}), StatusIs(invalid, HasSubstr("without modules")));
  EXPECT_THAT(PlanGroups(root, {&root}), StatusIs(invalid, HasSubstr("'net' is the root")));
  EXPECT_THAT(PlanGroups(root, {&unrelated}), StatusIs(invalid, HasSubstr("'unrelated' is not below")));
}

}  // namespace
}  // namespace weft::testing
