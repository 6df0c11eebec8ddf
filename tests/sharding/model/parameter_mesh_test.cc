// Parameters that have a mesh of their own within one model.
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/expect_costs.h"
#include "tests/sharding/support/toy_training.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 4;

DeviceMesh MeshOf(int shard) { return MakeToyMesh(kRanks / shard, shard).value(); }

// Sizes of the shard groups of layers; 0: the model's mesh.
ToyRun RunOf(int shard, const std::vector<int>& of_layers) {
  ToyRun run{.replicate = kRanks / shard, .shard = shard};
  run.policy.mesh_of = [of_layers](const Parameter& parameter) -> std::optional<DeviceMesh> {
    for (size_t layer = 0; layer < of_layers.size(); ++layer) {
      const bool is_in_layer = parameter.name.starts_with("layers." + std::to_string(layer) + ".");
      if (is_in_layer && of_layers[layer] > 0) return MeshOf(of_layers[layer]);
    }
    return std::nullopt;
  };
  return run;
}

void ExpectOutcomeOf(const ToyRun& run, const std::function<void(const ToyOutcome&)>& check) {
  RunRanks(NodeMap::RanksPerNode(kRanks, 2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const ToyOutcome outcome, TrainToy(bootstrap, run));
    check(outcome);
    return absl::OkStatus();
  });
}

// Returns the outcome of rank 0.
ToyOutcome OutcomeOf(const ToyRun& run) {
  ToyOutcome first;
  ExpectOutcomeOf(run, [&](const ToyOutcome& outcome) {
    if (outcome.rank == 0) first = outcome;
  });
  return first;
}

// The model's mesh is FSDP, HSDP and DDP.
std::vector<ToyRun> RunsOfSeveralMeshes() {
  return {RunOf(4, {2, 0, 1}), RunOf(2, {4, 1, 0}), RunOf(1, {4, 2, 0})};
}

TEST(ParameterMesh, TrainsLikeOneRankAndToTheBitsOfOneMesh) {
  const ToyOutcome alone = *TrainToyOnOneRank({});
  const ToyOutcome expected = OutcomeOf({.replicate = 1, .shard = kRanks});
  for (const FlatKind layout : kFlatKinds) {
    for (ToyRun run : RunsOfSeveralMeshes()) {
      run.policy.layout = layout;
      SCOPED_TRACE(run.Describe());
      ExpectOutcomeOf(run, [&](const ToyOutcome& outcome) {
        EXPECT_EQ(outcome.weights, expected.weights);
        EXPECT_EQ(outcome.norms, expected.norms);
        ExpectCosts(outcome);
        for (size_t step = 0; step < alone.norms.size(); ++step) {
          EXPECT_NEAR(outcome.norms[step], alone.norms[step], 1e-5 * alone.norms[step]);
        }
      });
    }
  }
}

// Partial sums over shard groups are added before replicas are, so the last bits depend on the meshes.
TEST(ParameterMesh, AddsUpMicrobatches) {
  ToyRun flat{.replicate = 1, .shard = kRanks, .microbatches = 2, .sync = GradientSync::kReduceScatter};
  const ToyOutcome expected = OutcomeOf(flat);
  for (ToyRun run : RunsOfSeveralMeshes()) {
    run.microbatches = flat.microbatches;
    run.sync = flat.sync;
    SCOPED_TRACE(run.Describe());
    ExpectOutcomeOf(run, [&](const ToyOutcome& outcome) {
      ExpectCosts(outcome);
      for (size_t i = 0; i < expected.weights.size(); ++i)
        EXPECT_NEAR(outcome.weights[i], expected.weights[i], 1e-5);
    });
  }
}

TEST(ParameterMesh, KeepsPartsOfItsOwnShardGroupAfterForward) {
  const ToyOutcome expected = OutcomeOf({.replicate = 1, .shard = kRanks});
  ToyRun run = RunOf(2, {4, 0, 0});
  run.policy.prefetch_depth = 0;
  run.policy.reshard_after_forward_size = 2;
  ExpectOutcomeOf(run, [&](const ToyOutcome& outcome) {
    EXPECT_EQ(outcome.weights, expected.weights);
    ExpectCosts(outcome);
  });
}

// The root and two blocks of an update, of which forward begins with the first block.
TEST(ParameterMesh, GathersTheFirstGroupsOfForwardDuringTheUpdateIfTheirOwnMeshSpansNodes) {
  using Names = std::vector<std::string>;
  for (const auto& meshes :
       {std::pair(RunOf(2, {4, 0, 0}), Names{"layers.0"}), std::pair(RunOf(4, {2, 0, 0}), Names{"net"})}) {
    const ToyRun& run = meshes.first;
    const Names& expected = meshes.second;
    RunRanks(NodeMap::RanksPerNode(kRanks, 2), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
      ToyNet net({6, 6, 6, 6});
      ShardingPolicy policy = run.policy;
      policy.prefetch_depth = 1;
      WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), MeshOf(run.shard), *engine.engine,
                                                         policy, LoadInitialValues(kToySeed)));
      WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), kRanks, 0, 0, 1));
      Names gathered;
      model->SetScheduleObserver([&](ScheduleEvent event, const std::string& group) {
        if (event == ScheduleEvent::kUnshard) gathered.push_back(group);
      });
      WEFT_RETURN_IF_ERROR(model->UpdateShards([](absl::Span<const ShardView>) { return absl::OkStatus(); }));
      EXPECT_EQ(gathered, expected);
      model->SetScheduleObserver(nullptr);
      return absl::OkStatus();
    });
  }
}

// Rank 1 fails before an update gathers what the next forward begins with. Its peers have begun a gather on
// the mesh of the first layer. The program goes on, although the reset names the update that rank 1 lacks.
TEST(ParameterMesh, TrainsAfterTheUpdateOfOneRankFailed) {
  const auto body = [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    ToyNet net({6, 6, 6, 6});
    WEFT_ASSIGN_OR_RETURN(const auto model,
                          FullyShard(net, net.blocks(), MeshOf(kRanks), *engine.engine,
                                     RunOf(kRanks, {2, 0, 0}).policy, LoadInitialValues(kToySeed)));
    const auto step = [&](int number) -> absl::Status {
      WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), kRanks, number, 0, 1));
      return ToyUpdate(*model, 1.0, nullptr);
    };
    WEFT_RETURN_IF_ERROR(step(0));
    absl::Status status = model->UpdateShards([&](absl::Span<const ShardView>) {
      return bootstrap.rank() == 1 ? absl::DataLossError("bad moments") : absl::OkStatus();
    });
    if (status.ok()) status = step(1);
    EXPECT_THAT(std::string(status.message()), HasSubstr("bad moments"));
    EXPECT_THAT(model->ResetAfterError(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("missing or incomplete on rank 1:")));
    for (int number = 1; number <= 2; ++number) WEFT_RETURN_IF_ERROR(step(number));
    return absl::OkStatus();
  };
  EXPECT_OK(RunSimulatedRanks(NodeMap::RanksPerNode(kRanks, 1), {}, body).status());
}

TEST(ParameterMesh, LeavesImagesSharedIfNoParameterHasAMeshOfItsOwn) {
  for (ToyRun run : {RunOf(kRanks, {0, 0, 0}), RunOf(kRanks, {kRanks, 0, 0})}) {
    run.policy.node_shared = NodeShared::kOn;
    RunRanks(NodeMap::OneNode(kRanks), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const ToyOutcome outcome, TrainToy(bootstrap, run));
      ExpectCosts(outcome);  // Those of images in place.
      return absl::OkStatus();
    });
  }
}

TEST(ParameterMesh, RefusesWhatItCannotShard) {
  RunRanks(NodeMap::OneNode(kRanks), [](Bootstrap& bootstrap) -> absl::Status {
    const auto expect_error = [&](const ToyRun& run, const std::string& text) {
      EXPECT_THAT(TrainToy(bootstrap, run).status(),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    };
    ToyRun run{.replicate = 1, .shard = kRanks};
    run.policy.mesh_of = [](const Parameter& parameter) {
      return parameter.name == "layers.1.scale" ? std::optional(MeshOf(2)) : std::nullopt;
    };
    expect_error(
        run, "parameter group 'layers.1': mesh_of gives 'layers.1.weight' and 'layers.1.scale' different");
    run.policy.mesh_of = [](const Parameter&) {
      return std::optional(*DeviceMesh::Create({{"shard", 2}}, 2));
    };
    expect_error(run, "mesh shard 2 has 2 ranks, but the engine connects 4");
    run = RunOf(2, {4, 0, 0});
    run.policy.shard_optimizer_over_replicas = true;
    expect_error(run,
                 "mesh_of gives parameters a mesh of their own, and shard_optimizer_over_replicas is on");
    run = RunOf(2, {4, 0, 0});
    run.policy.node_shared = NodeShared::kOn;
    expect_error(run, "mesh_of");
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
