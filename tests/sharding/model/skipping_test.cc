// Blocks that a rank does not call: the rank takes part in their collectives and adds zero to their
// gradients.
#include <map>
#include <mutex>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "weft/core/hash.h"
#include "weft/nn/materialize.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int kSteps = 4;
constexpr size_t kLayers = 5;
const std::vector<int64_t> kSizes(kLayers + 1, 6);

// Layers that a rank calls in a step, from the bits of a hash of rank and step.
struct Choice {
  bool whole_first_step;
  bool reversed;         // Against the order of the modules.
  bool grouped = false;  // Layers 0 and 4 are one group, layers 2 and 3 another one. Layer 3 recomputes.
  std::optional<std::vector<size_t>> first_step = std::nullopt;  // Layers that all ranks call in it.

  std::vector<size_t> Layers(int rank, int step) const {
    if (step == 0 && first_step) return *first_step;
    std::vector<size_t> layers;
    const uint64_t bits = HashCombine(static_cast<uint64_t>(rank) + 1, static_cast<uint64_t>(step) + 1);
    for (size_t layer = 0; layer < kLayers; ++layer) {
      if ((whole_first_step && step == 0) || ((bits >> layer) & 1) != 0) layers.push_back(layer);
    }
    if (reversed) std::reverse(layers.begin(), layers.end());
    return layers;
  }
};

ModuleBlocks BlocksOf(ToyNet& net, const Choice& choice) {
  if (!choice.grouped) return net.blocks();
  return {{&net.layer(0), &net.layer(4)}, &net.layer(1), {&net.layer(2), &net.layer(3)}};
}

// All parameters in the order of the modules.
absl::StatusOr<std::vector<float>> WeightsOf(ToyNet& net, ShardedModel& model) {
  ShardedGroups& groups = model.sharded_groups();
  std::vector<float> weights;
  for (int group = 0; group < groups.group_count(); ++group) {
    WEFT_RETURN_IF_ERROR(groups.Unshard(group));
    WEFT_RETURN_IF_ERROR(groups.WaitUnshard(group));
  }
  for (const auto& parameter : net.AllParameters()) {
    const std::vector<float> values = ReadValues(parameter->data);
    weights.insert(weights.end(), values.begin(), values.end());
  }
  for (int group = 0; group < groups.group_count(); ++group) WEFT_RETURN_IF_ERROR(groups.Reshard(group));
  return weights;
}

absl::StatusOr<std::vector<float>> Train(Bootstrap& bootstrap, int shard, const ShardingPolicy& policy,
                                         const Choice& choice) {
  WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(kRanks / shard, shard));
  ToyNet net(kSizes);
  net.layer(3).SetActivationCheckpointing(choice.grouped);
  WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, BlocksOf(net, choice), mesh, *engine.engine, policy,
                                                     LoadInitialValues(kToySeed)));
  for (int step = 0; step < kSteps; ++step) {
    net.SetOrder(choice.Layers(bootstrap.rank(), step));
    WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), kRanks, step, 0, 1));
    WEFT_RETURN_IF_ERROR(ToyUpdate(*model, kNoClipping, nullptr));
  }
  return WeightsOf(net, *model);
}

// The same on one rank, which runs the passes of all ranks.
std::vector<float> TrainOnOneRank(const Choice& choice) {
  ToyNet net(kSizes);
  MaterializedParameters memory(net, kToySeed, DType::kF32, DType::kF32);
  for (int step = 0; step < kSteps; ++step) {
    for (const auto& parameter : net.AllParameters()) {
      AddGradient(*parameter, std::vector<float>(static_cast<size_t>(parameter->elements())));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      net.SetOrder(choice.Layers(rank, step));
      EXPECT_OK(ToyPass(net, rank, kRanks, step, 0, 1));
    }
    for (const auto& parameter : net.AllParameters()) {
      for (int64_t i = 0; i < parameter->elements(); ++i) {
        parameter->data.As<float>()[i] -= kToyLearningRate * parameter->grad.As<float>()[i];
      }
    }
    memory.ClearGradients();
  }
  std::vector<float> weights;
  for (const auto& parameter : net.AllParameters()) {
    const std::vector<float> values = ReadValues(parameter->data);
    weights.insert(weights.end(), values.begin(), values.end());
  }
  return weights;
}

void ExpectLikeOneRank(const Choice& choice) {
  const std::vector<float> alone = TrainOnOneRank(choice);
  std::map<uint64_t, std::string> seen;
  std::mutex mutex;
  for (const int shard : {1, 2, 4}) {
    for (const bool reshard : {true, false}) {
      for (int depth = 0; depth <= ShardingPolicy::kMaxPrefetchDepth; ++depth) {
        ShardingPolicy policy;
        policy.reshard_after_forward = reshard;
        policy.prefetch_depth = depth;
        RunRanks(NodeMap::RanksPerNode(kRanks, 2), [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, Train(bootstrap, shard, policy, choice));
          EXPECT_THAT(weights, ::testing::Pointwise(::testing::FloatNear(1e-5F), alone));
          const std::lock_guard lock(mutex);
          seen.emplace(Hash64(weights.data(), weights.size() * sizeof(float)),
                       absl::StrCat("shard ", shard, ", reshard ", reshard, ", prefetch ", depth));
          return absl::OkStatus();
        });
      }
    }
  }
  EXPECT_THAT(seen, ::testing::SizeIs(1));
}

TEST(SkippedBlocks, TrainLikeOneRankFromTheFirstPass) {
  ExpectLikeOneRank({.whole_first_step = false, .reversed = false});
}

TEST(SkippedBlocks, TrainLikeOneRankAfterAWholeFirstPass) {
  ExpectLikeOneRank({.whole_first_step = true, .reversed = false});
}

TEST(SkippedBlocks, TrainLikeOneRankInAnOrderOtherThanTheModules) {
  ExpectLikeOneRank({.whole_first_step = true, .reversed = true});
}

TEST(SkippedBlocks, TrainLikeOneRankIfTheyShareGroups) {
  ExpectLikeOneRank({.whole_first_step = false, .reversed = false, .grouped = true});
  ExpectLikeOneRank({.whole_first_step = true, .reversed = true, .grouped = true});
}

TEST(SkippedBlocks, TrainLikeOneRankIfNoRankCalledThemInTheFirstPass) {
  ExpectLikeOneRank({.whole_first_step = false, .reversed = false, .first_step = {{3}}});
}

TEST(SkippedBlocks, CostNoAdditionalCollective) {
  WithToyModel(2, PrivateImages(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    model.ZeroGradients();
    const int64_t before = PartsOf(model).context.state().engine().counters().operations;
    net.SetOrder(rank == 0 ? std::vector<size_t>{0, 2} : std::vector<size_t>{1});
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    // Gathers of forward and backward, reductions, and the agreement on unused parameters.
    EXPECT_EQ(PartsOf(model).context.state().engine().counters().operations - before, 1 + 3 + 1 + 4 + 1);
    return absl::OkStatus();
  });
}

TEST(SkippedBlocks, AreNotGatheredIfNoRankCallsThemNorThoseBesideThem) {
  WithToyModel(2, PrivateImages(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    const auto gathers = [&]() -> int64_t {
      const int64_t before = model.counters().all_gathers;
      EXPECT_OK(ToyPassOf(net, model, rank));
      model.ZeroGradients();
      return model.counters().all_gathers - before;
    };
    net.SetOrder({});
    gathers();
    EXPECT_EQ(gathers(), 1);
    model.RecordOrderAgain();
    net.SetOrder({0, 2});
    gathers();
    EXPECT_EQ(gathers(), 1 + 3 + 1);
    return absl::OkStatus();
  });
}

TEST(SkippedBlocks, FailOnAllRanksIfTheirOrdersDiffer) {
  for (const NodeMap& nodes : {NodeMap::OneNode(2), NodeMap::RanksPerNode(2, 1)}) {
    for (const int shard : {1, 2}) {
      RunRanks(nodes, [shard](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
        WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2 / shard, shard));
        ToyNet net({6, 6, 6, 6});
        WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, {},
                                                           LoadInitialValues(kToySeed)));
        if (bootstrap.rank() == 1) net.SetOrder({0, 2, 1});
        const absl::Status status = ToyPass(net, bootstrap.rank(), 2, 0, 0, 1);
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr("rank 0 submitted"), HasSubstr("rank 1 submitted"), HasSubstr("of '"),
                          HasSubstr("('layers.")));
        return absl::OkStatus();
      });
    }
  }
}

}  // namespace
}  // namespace weft::testing
