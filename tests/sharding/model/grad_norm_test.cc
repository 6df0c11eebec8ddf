// Gradient norms on different meshes, and of parameters that differ between replicas.
#include <cmath>
#include <mutex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"

namespace weft::testing {
namespace {

TEST(ClipGradNorm, GivesTheSameBitsOnEveryMeshForEveryNorm) {
  for (const NormType type : {NormType::kOne, NormType::kTwo, NormType::kInfinity}) {
    std::set<double> seen;
    std::mutex mutex;
    for (const int shard : {1, 2, 4}) {
      RunRanks(NodeMap::RanksPerNode(4, 2), [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
        WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(4 / shard, shard));
        ToyNet net({7, 5, 3});
        WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, {},
                                                           LoadInitialValues(kToySeed)));
        WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), 4, 0, 0, 1));
        WEFT_ASSIGN_OR_RETURN(const GradientNorm norm, model->ClipGradNorm(0.25, type));
        EXPECT_EQ(norm.factor, static_cast<float>(std::min(1.0, 0.25 / (norm.norm + 1e-6))));
        const std::lock_guard lock(mutex);
        seen.insert(norm.norm);
        return absl::OkStatus();
      });
    }
    EXPECT_THAT(seen, ::testing::SizeIs(1));
  }
}

TEST(ClipGradNorm, IsTheNormOfAllGradients) {
  WithToyModel(1, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    double one = 0.0;
    double squares = 0.0;
    double infinity = 0.0;
    for (const ShardView& shard : model.Shards()) {
      for (int64_t i = 0; i < shard.elements(); ++i) {
        const double magnitude = std::abs(static_cast<double>(shard.grad[i]));
        one += magnitude;
        squares += magnitude * magnitude;
        infinity = std::max(infinity, magnitude);
      }
    }
    EXPECT_NEAR(model.ClipGradNorm(1.0, NormType::kOne)->norm, one, 1e-12 * one);
    EXPECT_NEAR(model.ClipGradNorm(1.0, NormType::kTwo)->norm, std::sqrt(squares), 1e-12);
    EXPECT_EQ(model.ClipGradNorm(1.0, NormType::kInfinity)->norm, infinity);
    return absl::OkStatus();
  });
}

TEST(ClipGradNorm, CountsParametersThatDifferBetweenReplicasOnEachReplica) {
  ShardingPolicy policy;
  policy.replicate_group = [](const Parameter& parameter) -> std::optional<ProcessGroup> {
    if (parameter.name == "net.gain") return std::nullopt;
    return ProcessGroup{"replicate", {0, 1}, -1};
  };
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    ShardingPolicy mine = policy;
    mine.replicate_group = [&](const Parameter& parameter) {
      std::optional<ProcessGroup> group = policy.replicate_group(parameter);
      if (group) group->group_rank = bootstrap.rank();
      return group;
    };
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 1));
    ToyNet net({6, 6});
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, mine,
                                                       LoadInitialValues(kToySeed)));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, *model, bootstrap.rank()));
    for (const ShardView& shard : model->Shards()) {
      const bool gain = shard.parameter->name == "net.gain";
      for (int64_t i = 0; i < shard.elements(); ++i) {
        shard.grad[i] = gain ? static_cast<float>(bootstrap.rank() + 1) : 1.0F;
      }
    }
    // The gain's 6 elements are 1 on one replica and 2 on the other. The other 42 elements are 1 and count
    // once.
    EXPECT_EQ(model->ClipGradNorm(0.0, NormType::kOne)->norm, 6.0 + 12.0 + 42.0);
    EXPECT_EQ(model->ClipGradNorm(0.0, NormType::kTwo)->norm, std::sqrt(6.0 + 24.0 + 42.0));
    EXPECT_EQ(model->ClipGradNorm(0.0, NormType::kInfinity)->norm, 2.0);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
