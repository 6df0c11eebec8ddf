// Replicate groups that differ between parameters.
#include "sharding/plan/replicate_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/status_codes.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Replicas = std::optional<ProcessGroup>;

TEST(ReplicateBuckets, AreTheDistinctGroupsOfAllParameters) {
  const auto parameters = MakeParameters({{1}, {1}, {1}, {1}});
  ShardingPolicy policy;
  policy.replicate_group = [](const Parameter& parameter) -> Replicas {
    if (parameter.name == "p0") return std::nullopt;
    return parameter.name == "p2" ? GroupOf("replicate", {1, 3}, 1) : GroupOf("outer", {1, 5, 9}, 1);
  };
  const ProcessGroup shard = GroupOf("shard", {0, 1}, 1);
  ASSERT_OK_AND_ASSIGN(const ReplicateBuckets buckets,
                       PlanReplicateBuckets(parameters, policy, shard, GroupOf("replicate", {1, 3}, 1)));
  ASSERT_EQ(buckets.groups.size(), 3);
  EXPECT_THAT(buckets.groups[0].ranks, ElementsAre(1, 3));
  EXPECT_THAT(buckets.groups[1].ranks, ElementsAre(1));
  EXPECT_THAT(buckets.groups[2].ranks, ElementsAre(1, 5, 9));
  EXPECT_THAT(buckets.BucketsOf(parameters), ElementsAre(1, 2, 0, 2));
}

TEST(ReplicateBuckets, DefaultToTheReplicateGroupOfTheMesh) {
  const auto parameters = MakeParameters({{1}, {1}});
  ASSERT_OK_AND_ASSIGN(
      const ReplicateBuckets buckets,
      PlanReplicateBuckets(parameters, {}, GroupOf("shard", {0, 1}, 0), GroupOf("replicate", {0, 2}, 0)));
  EXPECT_EQ(buckets.groups.size(), 1);
  EXPECT_THAT(buckets.BucketsOf(parameters), ElementsAre(0, 0));
}

TEST(ReplicateBuckets, RefuseGroupsThatHoldNoReplicasOfThisRank) {
  const auto plan = [](const ProcessGroup& group) {
    ShardingPolicy policy;
    policy.replicate_group = [&group](const Parameter&) -> Replicas { return group; };
    return PlanReplicateBuckets(MakeParameters({{1}}), policy, GroupOf("shard", {0, 1}, 0),
                                GroupOf("replicate", {0, 2}, 0));
  };
  EXPECT_THAT(plan(GroupOf("other", {1, 3}, 1)),
              StatusIs(kInvalid, AllOf(HasSubstr("'p0', ranks 1 3"), HasSubstr("does not have rank 0"))));
  EXPECT_THAT(plan({"other", {0, 2}, 5}), StatusIs(kInvalid, HasSubstr("at its place 5")));
  EXPECT_THAT(plan(GroupOf("other", {0, 1}, 0)),
              StatusIs(kInvalid, HasSubstr("ranks 0 and 1 of one shard group")));
}

// Eight ranks as replicate x outer x shard, each axis of size 2. Parameters are replicated over one of the
// first two axes, over both, or over none. Rank r contributes 4^r, so that a sum shows which ranks it has.
class EightRanks {
 public:
  static absl::Status Reduce(Bootstrap& bootstrap, int64_t dim, bool scatter) {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    const int rank = bootstrap.rank();
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                          DeviceMesh::Create({{"replicate", 2}, {"outer", 2}, {"shard", 2}}, 8));
    std::vector<ProcessGroup> replicas;
    for (const std::vector<std::string_view>& axes :
         std::vector<std::vector<std::string_view>>{{"replicate"}, {"outer"}, {"replicate", "outer"}, {}}) {
      WEFT_ASSIGN_OR_RETURN(replicas.emplace_back(), mesh.Group(axes, rank));
    }
    ShardingPolicy policy;
    policy.replicate_group = [&replicas](const Parameter& parameter) -> Replicas {
      const size_t axis = static_cast<size_t>(parameter.name.back() - '0') % 4;
      return axis == 3 ? Replicas() : replicas[axis];
    };
    WEFT_ASSIGN_OR_RETURN(ProcessGroup shard, mesh.Group({"shard"}, rank));
    const auto parameters =
        MakeParameters({{dim, 3}, {dim}, {5, dim}, {dim, dim}, {dim}, {2, dim}, {1}, {dim}});
    WEFT_ASSIGN_OR_RETURN(const ReplicateBuckets buckets,
                          PlanReplicateBuckets(parameters, policy, shard, replicas[0]));
    WEFT_ASSIGN_OR_RETURN(const auto context,
                          CommContext::Create(*engine.engine, shard, buckets.groups,
                                              {.lanes = {.shard_optimizer_over_replicas = scatter}}));
    for (ShardingPolicy kind : PolicyOfEachLayout()) {
      kind.replicate_group = policy.replicate_group;
      WEFT_ASSIGN_OR_RETURN(const auto group,
                            MakeGroup(*context, parameters, kind, "group", buckets.BucketsOf(parameters)));
      const ShardingCounters before = context->state().counters();
      for (const ReduceScope scope : {ReduceScope::kShard, ReduceScope::kShardAndReplicate}) {
        WEFT_RETURN_IF_ERROR(group->PrepareGradients());
        for (const auto& parameter : parameters) {
          AddGradient(*parameter,
                      std::vector<float>(static_cast<size_t>(parameter->elements()), Contribution(rank)));
        }
        WEFT_RETURN_IF_ERROR(group->ReduceGradients(scope));
      }
      WEFT_RETURN_IF_ERROR(context->FinishBackward());
      // One for each bucket that has replicas, and two over the shard group.
      EXPECT_EQ(context->state().counters().all_reduces - before.all_reduces, scatter ? 0 : 3);
      EXPECT_EQ(context->state().counters().reduce_scatters - before.reduce_scatters, scatter ? 5 : 2);
      for (const ShardView& view : group->Shards()) {
        EXPECT_THAT(absl::MakeConstSpan(view.grad, static_cast<size_t>(view.elements())),
                    ::testing::Each(Sum(replicas, *view.parameter)))
            << view.parameter->name;
        for (int64_t i = 0; i < view.elements(); ++i) view.data[i] = view.grad[i];
      }
      WEFT_RETURN_IF_ERROR(group->AllGatherUpdates(Priority::kBulk));
      WEFT_ASSIGN_OR_RETURN(const std::vector<ShardView> current, group->CurrentShards());
      for (const ShardView& view : current) {
        EXPECT_THAT(absl::MakeConstSpan(view.data, static_cast<size_t>(view.elements())),
                    ::testing::Each(Sum(replicas, *view.parameter)))
            << view.parameter->name;
      }
    }
    return absl::OkStatus();
  }

 private:
  static float Contribution(int rank) { return static_cast<float>(1 << (2 * rank)); }
  // Sum of two microbatches over the replicas of a parameter and their shard groups.
  static float Sum(const std::vector<ProcessGroup>& replicas, const Parameter& parameter) {
    float sum = 0.0F;
    for (const int replica : replicas[static_cast<size_t>(parameter.name.back() - '0') % 4].ranks) {
      sum += 2 * (Contribution(replica - replica % 2) + Contribution(replica - replica % 2 + 1));
    }
    return sum;
  }
};

TEST(ReplicateBuckets, ReduceEachParameterOverItsOwnReplicasOnEightRanks) {
  for (const int64_t dim : {3, 5, 16, 17}) {
    for (const NodeMap& nodes : {NodeMap::OneNode(8), NodeMap::RanksPerNode(8, 4)}) {
      for (const bool scatter : {false, true}) {
        RunRanks(nodes, [&](Bootstrap& bootstrap) { return EightRanks::Reduce(bootstrap, dim, scatter); });
      }
    }
  }
}

}  // namespace
}  // namespace weft::testing
