#include "weft/mesh/device_mesh.h"

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// All meshes with up to three axes, for a set of sizes.
std::vector<std::vector<MeshAxis>> Shapes() {
  std::vector<std::vector<MeshAxis>> shapes = {{}};
  for (const int a : {1, 2, 3, 5}) {
    shapes.push_back({{"replicate", a}});
    for (const int b : {1, 2, 4}) {
      shapes.push_back({{"replicate", a}, {"shard", b}});
      for (const int c : {1, 2, 3}) shapes.push_back({{"replicate", a}, {"shard", b}, {"context", c}});
    }
  }
  return shapes;
}

// Every subset of the mesh's axes, in mesh order.
std::vector<std::vector<std::string_view>> AxisSubsets(const DeviceMesh& mesh) {
  std::vector<std::vector<std::string_view>> subsets;
  for (unsigned mask = 0; mask < 1U << mesh.axes().size(); ++mask) {
    auto& subset = subsets.emplace_back();
    for (size_t axis = 0; axis < mesh.axes().size(); ++axis) {
      if ((mask >> axis & 1U) != 0) subset.push_back(mesh.axes()[axis].name);
    }
  }
  return subsets;
}

int Product(const std::vector<MeshAxis>& axes) {
  int product = 1;
  for (const MeshAxis& axis : axes) product *= axis.size;
  return product;
}

TEST(DeviceMesh, NumbersRanksInRowMajorOrder) {
  for (const auto& axes : Shapes()) {
    ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Create(axes, Product(axes)));
    EXPECT_EQ(mesh.size(), Product(axes));
    for (int rank = 0; rank < mesh.size(); ++rank) {
      int back = 0;
      const std::vector<int> coordinates = mesh.Coordinates(rank);
      for (size_t axis = 0; axis < axes.size(); ++axis) back = back * axes[axis].size + coordinates[axis];
      EXPECT_EQ(back, rank) << mesh.ToString();
    }
  }
}

TEST(DeviceMesh, AllMembersOfAGroupComputeTheSameGroup) {
  for (const auto& axes : Shapes()) {
    ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Create(axes, Product(axes)));
    for (const auto& names : AxisSubsets(mesh)) {
      for (int rank = 0; rank < mesh.size(); ++rank) {
        ASSERT_OK_AND_ASSIGN(const ProcessGroup group, mesh.Group(names, rank));
        EXPECT_EQ(group.ranks[group.group_rank], rank);
        EXPECT_TRUE(std::is_sorted(group.ranks.begin(), group.ranks.end()));
        for (int group_rank = 0; group_rank < group.size(); ++group_rank) {
          ASSERT_OK_AND_ASSIGN(const ProcessGroup theirs, mesh.Group(names, group.ranks[group_rank]));
          EXPECT_EQ(theirs.ranks, group.ranks);
          EXPECT_EQ(theirs.group_rank, group_rank);
          EXPECT_EQ(theirs.name, group.name);
        }
      }
    }
  }
}

TEST(DeviceMesh, RanksOfAGroupDifferOnlyOnItsAxes) {
  for (const auto& axes : Shapes()) {
    ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Create(axes, Product(axes)));
    for (const auto& names : AxisSubsets(mesh)) {
      const std::set<std::string_view> along(names.begin(), names.end());
      std::vector<MeshAxis> chosen;
      std::copy_if(axes.begin(), axes.end(), std::back_inserter(chosen),
                   [&](const MeshAxis& axis) { return along.contains(axis.name); });
      ASSERT_OK_AND_ASSIGN(const DeviceMesh submesh, DeviceMesh::Create(chosen, Product(chosen)));
      for (int rank = 0; rank < mesh.size(); ++rank) {
        ASSERT_OK_AND_ASSIGN(const ProcessGroup group, mesh.Group(names, rank));
        ASSERT_EQ(group.size(), submesh.size());
        for (int group_rank = 0; group_rank < group.size(); ++group_rank) {
          // Expected: on the group's axes the coordinates in their mesh, on the others those of the caller.
          std::vector<int> expected = mesh.Coordinates(rank);
          const std::vector<int> inside = submesh.Coordinates(group_rank);
          for (size_t axis = 0, next = 0; axis < axes.size(); ++axis) {
            if (along.contains(axes[axis].name)) expected[axis] = inside[next++];
          }
          EXPECT_EQ(mesh.Coordinates(group.ranks[group_rank]), expected);
        }
      }
    }
  }
}

TEST(DeviceMesh, NamesGroupsAfterTheirAxes) {
  ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh,
                       DeviceMesh::Create({{"replicate", 2}, {"shard", 2}, {"context", 2}}, 8));
  ASSERT_OK_AND_ASSIGN(const ProcessGroup flat, mesh.Group({"shard", "context"}, 5));
  EXPECT_EQ(flat.name, "shard_context");
  EXPECT_THAT(flat.ranks, ElementsAre(4, 5, 6, 7));
  ASSERT_OK_AND_ASSIGN(const ProcessGroup strided, mesh.Group({"replicate"}, 5));
  EXPECT_EQ(strided.name, "replicate");
  EXPECT_THAT(strided.ranks, ElementsAre(1, 5));
  ASSERT_OK_AND_ASSIGN(const ProcessGroup alone, mesh.Group({}, 5));
  EXPECT_EQ(alone.name, "self");
  EXPECT_THAT(alone.ranks, ElementsAre(5));
  EXPECT_EQ(mesh.ToString(), "replicate 2 x shard 2 x context 2");
}

TEST(DeviceMesh, ComputesTheSizeOfAnAxisOfSizeMinusOne) {
  ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Create({{"replicate", 3}, {"shard", -1}}, 12));
  ASSERT_OK_AND_ASSIGN(const int size, mesh.AxisSize("shard"));
  EXPECT_EQ(size, 4);
}

TEST(DeviceMesh, RejectsAxesThatDoNotMultiplyToTheWorldSize) {
  const auto create = [](std::vector<MeshAxis> axes, int ranks) {
    return DeviceMesh::Create(std::move(axes), ranks).status();
  };
  const auto invalid = [](const auto& message) {
    return StatusIs(absl::StatusCode::kInvalidArgument, message);
  };
  EXPECT_THAT(create({{"replicate", 2}, {"shard", 2}}, 6),
              invalid(AllOf(HasSubstr("replicate 2 x shard 2"), HasSubstr("6 ranks"))));
  EXPECT_THAT(create({{"replicate", 4}, {"shard", -1}}, 6), invalid(HasSubstr("6 ranks")));
  EXPECT_THAT(create({{"replicate", 8}, {"shard", -1}}, 4), invalid(HasSubstr("4 ranks")));
  EXPECT_THAT(create({{"shard", 0}}, 1), invalid(HasSubstr("'shard' has size 0")));
  EXPECT_THAT(create({{"shard", -2}}, 1), invalid(HasSubstr("size -2")));
  EXPECT_THAT(create({{"replicate", -1}, {"shard", -1}}, 4), invalid(HasSubstr("2 axes of size -1")));
  EXPECT_THAT(create({{"shard", 2}, {"shard", 2}}, 4), invalid(HasSubstr("names 'shard' twice")));
  EXPECT_THAT(create({{"a", 1 << 30}, {"b", 1 << 30}, {"c", 1 << 30}}, 4), invalid(HasSubstr("4 ranks")));
}

TEST(DeviceMesh, RejectsUnknownRepeatedAndDisorderedAxes) {
  ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Create({{"replicate", 2}, {"shard", 2}}, 4));
  EXPECT_THAT(mesh.AxisSize("context"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("'context'"), HasSubstr("replicate 2 x shard 2"))));
  EXPECT_THAT(mesh.Group({"context"}, 0), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'context'")));
  EXPECT_THAT(
      mesh.Group({"shard", "replicate"}, 0),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'replicate' is repeated or out of order")));
  EXPECT_THAT(mesh.Group({"shard", "shard"}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'shard'")));
}

}  // namespace
}  // namespace weft
