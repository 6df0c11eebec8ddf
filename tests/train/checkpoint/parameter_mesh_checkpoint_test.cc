// Checkpoints of a model whose parameters have several meshes.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/nn/initialize.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"
#include "weft/sharding/fully_shard.h"
#include "weft/sharding/state_dict.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

using Arrays = std::map<std::string, std::vector<float>>;

// A model of two layers on four ranks.
struct TwoLayers {
  Sequential net{""};
  Linear& first = net.Add<Linear>("first", 8, 12);
  Linear& second = net.Add<Linear>("second", 12, 5);

  absl::StatusOr<std::unique_ptr<ShardedModel>> Shard(CommEngine& engine, const DeviceMesh& mesh,
                                                      const ShardingPolicy& policy,
                                                      const ShardLoader& loader) {
    return FullyShard(net, {&first, &second}, mesh, engine, policy, loader);
  }
};

absl::StatusOr<Arrays> WholeArrays(ShardedModel& model, StateTarget target) {
  Arrays arrays;
  WEFT_ASSIGN_OR_RETURN(const std::vector<ShardView> shards, model.CurrentShards());
  WEFT_RETURN_IF_ERROR(
      GatherFullState(model, shards, target, [&](const Parameter& parameter, absl::Span<const float> values) {
        arrays[parameter.name].assign(values.begin(), values.end());
        return absl::OkStatus();
      }));
  return arrays;
}

TEST(ParameterMeshCheckpoint, HoldsEachElementOnceAndLoadsOnOneMesh) {
  const TempFolder folder;
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(4), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = 16 << 20}));
    WEFT_ASSIGN_OR_RETURN(const auto engine, CommEngine::Create(bootstrap, *heap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh pairs, DeviceMesh::Create({{"replicate", 2}, {"shard", 2}}, 4));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh flat, DeviceMesh::Create({{"shard", 4}}, 4));
    TwoLayers saved;
    ShardingPolicy policy;
    policy.mesh_of = [&flat](const Parameter& parameter) {
      return parameter.name == "second.weight" ? std::optional(flat) : std::nullopt;
    };
    WEFT_ASSIGN_OR_RETURN(const auto model, saved.Shard(*engine, pairs, policy, LoadInitialValues(1)));
    CheckpointState state;
    state.step = 1;
    CheckpointArrays& arrays = state.arrays.emplace_back(CheckpointArrays{"model", "", {}});
    for (const ShardView& shard : model->Shards()) {
      if (model->IsFirstReplica(*shard.parameter)) arrays.shards.push_back(shard);
    }
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, folder.str(), {}));
    WEFT_RETURN_IF_ERROR(saver->Start(std::move(state)));
    WEFT_RETURN_IF_ERROR(saver->Finish());
    WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder / CheckpointName(1)));
    TwoLayers loaded;
    WEFT_ASSIGN_OR_RETURN(const auto other, loaded.Shard(*engine, flat, {}, checkpoint.Loader("model")));
    WEFT_ASSIGN_OR_RETURN(const Arrays before, WholeArrays(*model, StateTarget::kEveryRank));
    WEFT_ASSIGN_OR_RETURN(const Arrays after, WholeArrays(*other, StateTarget::kEveryRank));
    EXPECT_EQ(after, before);
    EXPECT_EQ(before.size(), 2);
    WEFT_ASSIGN_OR_RETURN(const Arrays first, WholeArrays(*model, StateTarget::kRankZero));
    EXPECT_EQ(first, bootstrap.rank() == 0 ? before : Arrays());
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace weft
