#include "sharding/plan/mesh_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<MeshGroups> GroupsOf(std::vector<MeshAxis> axes, int rank) {
  int size = 1;
  for (const MeshAxis& axis : axes) size *= axis.size;
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create(std::move(axes), size));
  return GroupsOfMesh(mesh, size, rank);
}

TEST(MeshGroups, ShardOverShardAndContextAndReplicateOverReplicate) {
  ASSERT_OK_AND_ASSIGN(const MeshGroups groups,
                       GroupsOf({{"replicate", 2}, {"shard", 2}, {"context", 3}}, /*rank=*/8));
  EXPECT_THAT(groups.shard.ranks, ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_EQ(groups.shard.group_rank, 2);
  EXPECT_THAT(groups.replicate.ranks, ElementsAre(2, 8));
  EXPECT_EQ(groups.replicate.group_rank, 1);
}

TEST(MeshGroups, AllowMissingAxes) {
  ASSERT_OK_AND_ASSIGN(const MeshGroups context, GroupsOf({{"context", 3}}, /*rank=*/1));
  EXPECT_THAT(context.shard.ranks, ElementsAre(0, 1, 2));
  EXPECT_THAT(context.replicate.ranks, ElementsAre(1));
  ASSERT_OK_AND_ASSIGN(const MeshGroups replicate, GroupsOf({{"replicate", 3}}, /*rank=*/1));
  EXPECT_THAT(replicate.shard.ranks, ElementsAre(1));
  EXPECT_THAT(replicate.replicate.ranks, ElementsAre(0, 1, 2));
  ASSERT_OK_AND_ASSIGN(const MeshGroups none, GroupsOf({}, /*rank=*/0));
  EXPECT_THAT(none.shard.ranks, ElementsAre(0));
}

TEST(MeshGroups, NameTheAxisThatDoesNotFit) {
  EXPECT_THAT(GroupsOf({{"context", 2}, {"shard", 2}}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("context 2 x shard 2"), HasSubstr("axis 'shard' does not fit"))));
  EXPECT_THAT(GroupsOf({{"shard", 2}, {"pipeline", 2}}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("axis 'pipeline' does not fit")));
}

}  // namespace
}  // namespace weft::testing
