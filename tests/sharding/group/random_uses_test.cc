// Random combinations of frozen parameters, shard dims, replicate groups and forms of accumulation, compared
// with sums of a plain loop.
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/plan/replicate_buckets.h"
#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/random_layout.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

constexpr int kRanks = 4;  // Two replicas of a shard group of two.
constexpr uint64_t kUses = 60, kUsesIfLimited = 10;

// Small integers, whose sums are exact.
float GradientOf(int rank, int microbatch, int64_t element) {
  return static_cast<float>((element * 5 + microbatch * 3 + rank * 7) % 64);
}

class RandomUse {
 public:
  explicit RandomUse(uint32_t seed) : random_(seed), group_(MakeRandomGroup(seed)) {
    std::vector<Shape> shapes;
    for (const FlatParameter& parameter : group_.parameters) shapes.push_back(parameter.shape);
    parameters_ = MakeParameters(shapes);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i]->requires_grad = group_.parameters[i].trainable;
    }
    policy_.layout = group_.kind;
    if (!policy_.is_zero_copy()) {
      policy_.shard_dim = [this](const Parameter& p) { return group_.parameters[IndexOf(p)].shard_dim; };
    }
    policy_.max_reduce_scatters = Pick(0, 3);
    policy_.max_all_reduces = Pick(1, 3);
  }

  absl::Status Run(const RankEngine& engine) {
    const int rank = engine.engine->bootstrap().rank();
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 2));
    WEFT_ASSIGN_OR_RETURN(const ProcessGroup shard, mesh.Group({"shard"}, rank));
    WEFT_ASSIGN_OR_RETURN(const ProcessGroup replicate, mesh.Group({"replicate"}, rank));
    policy_.replicate_group = [&](const Parameter& p) {
      return is_replicated(IndexOf(p)) ? std::optional(replicate) : std::nullopt;
    };
    WEFT_ASSIGN_OR_RETURN(const ReplicateBuckets buckets,
                          PlanReplicateBuckets(parameters_, policy_, shard, replicate));
    const std::vector<int> regather_sizes(static_cast<size_t>(Pick(0, 1)), 2);
    policy_.reshard_after_forward_size = regather_sizes.empty() ? 0 : regather_sizes.front();
    WEFT_ASSIGN_OR_RETURN(
        const auto context,
        CommContext::Create(*engine.engine, shard, buckets.groups,
                            {.bounds = {policy_.max_reduce_scatters, policy_.max_all_reduces},
                             .lanes = {.regather_sizes = regather_sizes}}));
    WEFT_ASSIGN_OR_RETURN(const auto group,
                          MakeGroup(*context, parameters_, policy_, "group", buckets.BucketsOf(parameters_)));
    WEFT_RETURN_IF_ERROR(group->Load(LoadIndices));
    for (int step = 0; step < 2; ++step) {
      const int microbatches = Pick(1, 4);
      for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
        WEFT_RETURN_IF_ERROR(Pass(*context, *group, rank, microbatch, microbatch + 1 == microbatches));
      }
      WEFT_RETURN_IF_ERROR(context->FinishBackward());
      EXPECT_OK(group->CheckGradientsReduced());
      for (const ShardView& view : group->Shards()) ExpectSums(view, rank, microbatches);
      group->ZeroGradients();
    }
    return absl::OkStatus();
  }

 private:
  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  static size_t IndexOf(const Parameter& parameter) {
    return static_cast<size_t>(std::stoi(parameter.name.substr(1)));
  }
  bool is_replicated(size_t parameter) const { return group_.parameters[parameter].replicate_bucket != 1; }

  absl::Status Pass(CommContext& context, ParamGroup& group, int rank, int microbatch, bool last) {
    for (int gather = 0; gather < 2; ++gather) {
      WEFT_RETURN_IF_ERROR(Gather(group));
      for (const auto& parameter : parameters_) {
        if (parameter->elements() == 0) continue;
        EXPECT_EQ(ReadValues(parameter->data), Indices(parameter->elements()));
      }
      WEFT_RETURN_IF_ERROR(gather == 0 ? group.ReshardAfterForward() : absl::OkStatus());
    }
    WEFT_RETURN_IF_ERROR(group.PrepareGradients());
    for (const auto& parameter : parameters_) {
      if (!parameter->requires_grad || parameter->elements() == 0) continue;
      std::vector<float> gradient(static_cast<size_t>(parameter->elements()));
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = GradientOf(rank, microbatch, static_cast<int64_t>(i));
      }
      AddGradient(*parameter, gradient);
    }
    const int reach = last ? 2 : Pick(0, 2);
    if (reach > 0) {
      WEFT_RETURN_IF_ERROR(
          group.ReduceGradients(reach == 1 ? ReduceScope::kShard : ReduceScope::kShardAndReplicate));
    }
    WEFT_RETURN_IF_ERROR(group.Reshard());
    return Pick(0, 1) == 0 ? context.FinishBackward() : absl::OkStatus();
  }

  void ExpectSums(const ShardView& view, int rank, int microbatches) const {
    EXPECT_EQ(view.grad != nullptr, view.parameter->requires_grad);
    if (view.grad == nullptr) return;
    const bool over_replicas = is_replicated(IndexOf(*view.parameter));
    int64_t place = 0;
    for (int64_t run = 0; run < view.piece.runs; ++run) {
      for (int64_t i = 0; i < view.piece.run_length; ++i, ++place) {
        const int64_t element = view.piece.start + run * view.piece.run_stride + i;
        float expected = 0.0F;
        for (int peer = 0; peer < kRanks; ++peer) {
          if (!over_replicas && peer / 2 != rank / 2) continue;
          for (int m = 0; m < microbatches; ++m) expected += GradientOf(peer, m, element);
        }
        EXPECT_EQ(view.grad[place], expected) << view.parameter->name << ", element " << element;
      }
    }
  }

  std::mt19937 random_;
  RandomGroup group_;
  std::vector<std::shared_ptr<Parameter>> parameters_;
  ShardingPolicy policy_;
};

TEST(RandomUses, SumEveryGradientOverItsRanksAndMicrobatches) {
  for (const NodeMap& nodes : NodeMapsOf(kRanks)) {
    RunRanks(nodes, [](Bootstrap& bootstrap) -> absl::Status {
      for (uint64_t seed = 0; seed < (ScheduleLimit() ? kUsesIfLimited : kUses); ++seed) {
        SCOPED_TRACE(seed);
        WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
        RandomUse use(seed);
        WEFT_RETURN_IF_ERROR(use.Run(engine));
      }
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace weft::testing
