// Gradient norms on different meshes, and of parameters that differ between replicas.
#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "weft/core/reproducible_sum.h"

namespace weft::testing {
namespace {

constexpr NormType kNormTypes[] = {NormType::kOne, NormType::kTwo, NormType::kInfinity};

// Expects norms(model), after a pass over the same rows, to be the same on each mesh of four ranks.
template <typename Norms>
void ExpectTheSameBitsOnEveryMesh(Norms norms) {
  std::set<std::vector<double>> seen;
  std::mutex mutex;
  for (const int shard : {1, 2, 4}) {
    RunRanks(NodeMap::RanksPerNode(4, 2), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(4 / shard, shard));
      ToyNet net({7, 5, 3});
      WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, {},
                                                         LoadInitialValues(kToySeed)));
      WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), 4, 0, 0, 1));
      WEFT_ASSIGN_OR_RETURN(const std::vector<double> values, norms(*model));
      const std::lock_guard lock(mutex);
      seen.insert(values);
      return absl::OkStatus();
    });
  }
  EXPECT_THAT(seen, ::testing::SizeIs(1));
}

TEST(ClipGradNorm, GivesTheSameBitsOnEveryMeshForEveryNorm) {
  for (const NormType type : kNormTypes) {
    ExpectTheSameBitsOnEveryMesh([&](ShardedModel& model) -> absl::StatusOr<std::vector<double>> {
      WEFT_ASSIGN_OR_RETURN(const GradientNorm norm, model.ClipGradNorm(0.25, type));
      EXPECT_EQ(norm.factor, std::min(1.0, 0.25 / (norm.norm + 1e-6)));
      return std::vector<double>{norm.norm};
    });
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

// The set of the parameters whose names contain `word`.
ClipSet SetOf(const std::string& word, double max_norm) {
  return {[word](const Parameter& parameter) { return parameter.name.find(word) != std::string::npos; },
          max_norm};
}

// Norm of the gradients that `counts` selects, over the whole model on one rank.
template <typename Predicate>
double NormOfSelected(const ShardedModel& model, Predicate counts) {
  ReproducibleSum sum;
  for (const ShardView& shard : model.Shards()) {
    if (counts(shard.parameter->name)) sum += SumSquares(shard.grad, shard.elements());
  }
  return TwoNormOf(sum);
}

TEST(ClipGradNorms, ClipsEachSetByItsOwnNormAndLimit) {
  WithToyModel(1, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    const auto is_scale = [](const std::string& name) { return name.find("scale") != std::string::npos; };
    const auto is_weight = [](const std::string& name) { return name.find("weight") != std::string::npos; };
    const double scales = NormOfSelected(model, is_scale);
    const double weights = NormOfSelected(model, is_weight);
    EXPECT_NE(scales, weights);
    // The gain is in no set.
    const ClipSet sets[] = {SetOf("scale", 0.25 * scales), SetOf("weight", kNoClipping)};
    WEFT_ASSIGN_OR_RETURN(const std::vector<GradientNorm> norms, model.ClipGradNorms(sets));
    EXPECT_EQ(norms[0].norm, scales);
    EXPECT_EQ(norms[0].factor, ClipFactor(scales, 0.25 * scales));
    EXPECT_EQ(norms[1].norm, weights);
    EXPECT_EQ(norms[1].factor, 1.0);
    // A parameter counts in the first set that matches it.
    const ClipSet nested[] = {SetOf("layers.1", 1), SetOf("", 1)};
    WEFT_ASSIGN_OR_RETURN(const std::vector<GradientNorm> first, model.ClipGradNorms(nested));
    EXPECT_EQ(first[1].norm, NormOfSelected(model, [](const std::string& name) {
                return name.find("layers.1") == std::string::npos;
              }));
    return absl::OkStatus();
  });
}

TEST(ClipGradNorms, GivesTheSameBitsOnEveryMeshForEveryNormAndNumberOfSets) {
  for (const NormType type : kNormTypes) {
    ExpectTheSameBitsOnEveryMesh([&](ShardedModel& model) -> absl::StatusOr<std::vector<double>> {
      const ClipSet sets[] = {SetOf("none", 1), SetOf("scale", 1), SetOf("", 1)};
      WEFT_ASSIGN_OR_RETURN(const std::vector<GradientNorm> norms, model.ClipGradNorms(sets, type));
      EXPECT_EQ(norms[0].norm, 0.0);
      // The same bits in a reduction of one set, which takes another path.
      WEFT_ASSIGN_OR_RETURN(const std::vector<GradientNorm> alone,
                            model.ClipGradNorms({SetOf("scale", 1)}, type));
      EXPECT_EQ(alone[0].norm, norms[1].norm);
      return std::vector<double>{norms[1].norm, norms[2].norm};
    });
  }
}

TEST(ClipGradNorms, ReportsAnInfiniteGradientInItsSetAlone) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    for (const ShardView& shard : model.Shards()) {
      const bool scale = shard.parameter->name.find("scale") != std::string::npos;
      if (scale && shard.elements() > 0) shard.grad[0] = std::numeric_limits<float>::infinity();
    }
    const ClipSet sets[] = {SetOf("scale", 1), SetOf("", 1)};
    WEFT_ASSIGN_OR_RETURN(const std::vector<GradientNorm> norms, model.ClipGradNorms(sets));
    EXPECT_TRUE(std::isinf(norms[0].norm));
    EXPECT_TRUE(std::isfinite(norms[1].norm));
    return absl::OkStatus();
  });
}

TEST(ClipGradNorm, TakesZeroAndRefusesOtherLimitsThatClipToNothing) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    for (const double limit : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
      EXPECT_THAT(model.ClipGradNorm(limit), StatusIs(absl::StatusCode::kInvalidArgument,
                                                      ::testing::HasSubstr("0 or more, or infinity")));
    }
    EXPECT_EQ(model.ClipGradNorm(0)->factor, 0.0);
    EXPECT_EQ(model.ClipGradNorm(kNoClipping)->factor, 1.0);
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
    EXPECT_EQ(model->ClipGradNorm(kNoClipping, NormType::kOne)->norm, 6.0 + 12.0 + 42.0);
    EXPECT_EQ(model->ClipGradNorm(kNoClipping, NormType::kTwo)->norm, std::sqrt(6.0 + 24.0 + 42.0));
    EXPECT_EQ(model->ClipGradNorm(kNoClipping, NormType::kInfinity)->norm, 2.0);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
