// State by name: full, sharded, and loaded on another mesh.
#include "weft/sharding/state_dict.h"

#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Arrays = std::map<std::string, std::vector<float>>;

struct MeshShape {
  int replicate;
  int shard;
  FlatKind layout = FlatKind::kContiguous;
  bool optimizer_over_replicas = false;
};
constexpr MeshShape kMeshes[] = {{1, 1},
                                 {1, 2},
                                 {2, 2},
                                 {1, 3},
                                 {1, 3, FlatKind::kPerParameter},
                                 {1, 3, FlatKind::kRows},
                                 {3, 1},
                                 {3, 1, FlatKind::kRows},
                                 {2, 2, FlatKind::kPerParameter},
                                 {2, 2, FlatKind::kContiguous, true},
                                 {3, 1, FlatKind::kContiguous, true},
                                 {2, 2, FlatKind::kRows, true},
                                 {2, 2, FlatKind::kPerParameter, true}};

// Runs `body(net, model, rank)` on a mesh. With kPerParameter, parameters are sharded on their last dim.
template <typename Body>
void OnMesh(const MeshShape& shape, const ShardLoader& loader, Body body,
            const std::vector<int64_t>& sizes = {7, 15, 3}) {
  SCOPED_TRACE(absl::StrCat(shape.replicate, " x ", shape.shard, ", layout ", ToAbsl(Name(shape.layout)),
                            ", optimizer over replicas ", shape.optimizer_over_replicas));
  RunRanks(NodeMap::RanksPerNode(shape.replicate * shape.shard, 2),
           [&](Bootstrap& bootstrap) -> absl::Status {
             WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
             WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(shape.replicate, shape.shard));
             ToyNet net(sizes);
             ShardingPolicy policy;
             policy.layout = shape.layout;
             policy.shard_optimizer_over_replicas = shape.optimizer_over_replicas;
             if (!policy.is_zero_copy()) policy.shard_dim = [](const Parameter&) { return -1; };
             WEFT_ASSIGN_OR_RETURN(const auto model,
                                   FullyShard(net, net.blocks(), mesh, *engine.engine, policy, loader));
             return body(net, *model, bootstrap.rank());
           });
}

Arrays InitialValues() {
  const ToyNet net({7, 15, 3});
  Arrays arrays;
  for (const auto& parameter : const_cast<ToyNet&>(net).AllParameters()) {
    std::vector<float>& values = arrays[parameter->name];
    values.resize(static_cast<size_t>(parameter->elements()));
    EXPECT_OK(LoadInitialValues(kToySeed)(*parameter, 0, parameter->elements(), values.data()));
  }
  return arrays;
}

TEST(StateDict, GathersWholeArraysOnEveryRankOrOnTheFirst) {
  const Arrays expected = InitialValues();
  for (const MeshShape& shape : kMeshes) {
    OnMesh(shape, LoadInitialValues(kToySeed), [&](ToyNet&, ShardedModel& model, int rank) -> absl::Status {
      for (const StateTarget target : {StateTarget::kEveryRank, StateTarget::kRankZero}) {
        Arrays arrays;
        WEFT_RETURN_IF_ERROR(GatherFullState(
            model, model.Shards(), target, [&](const Parameter& parameter, absl::Span<const float> values) {
              EXPECT_TRUE(arrays.try_emplace(parameter.name, values.begin(), values.end()).second);
              return absl::OkStatus();
            }));
        EXPECT_EQ(arrays, target == StateTarget::kEveryRank || rank == 0 ? expected : Arrays());
      }
      return absl::OkStatus();
    });
  }
}

// Pieces of all ranks, with copies of their data.
struct SavedPieces {
  std::vector<StatePiece> pieces;
  std::vector<std::vector<float>> data;
  std::mutex mutex;

  void Add(const std::vector<StatePiece>& mine) {
    const std::lock_guard lock(mutex);
    for (const StatePiece& piece : mine) {
      data.emplace_back(piece.data, piece.data + piece.elements.elements());
      pieces.push_back({piece.name, piece.shape, piece.elements, data.back().data()});
    }
  }
};

TEST(StateDict, LoadsPiecesOfOneMeshOnAnyOther) {
  const Arrays expected = InitialValues();
  for (const MeshShape& from : kMeshes) {
    SavedPieces saved;
    OnMesh(from, LoadInitialValues(kToySeed), [&](ToyNet&, ShardedModel& model, int) {
      saved.Add(ShardedState(model.Shards(), ".exp_avg"));
      return absl::OkStatus();
    });
    for (const MeshShape& to : kMeshes) {
      OnMesh(to, LoadFromState(saved.pieces, ".exp_avg"),
             [&](ToyNet&, ShardedModel& model, int) -> absl::Status {
               Arrays arrays;
               WEFT_RETURN_IF_ERROR(
                   GatherFullState(model, model.Shards(), StateTarget::kEveryRank,
                                   [&](const Parameter& parameter, absl::Span<const float> values) {
                                     arrays.try_emplace(parameter.name, values.begin(), values.end());
                                     return absl::OkStatus();
                                   }));
               EXPECT_EQ(arrays, expected);
               return absl::OkStatus();
             });
    }
  }
}

TEST(StateDict, ResumesToTheSameBits) {
  const auto step = [](ToyNet& net, ShardedModel& model, int rank, int number) -> absl::Status {
    WEFT_RETURN_IF_ERROR(
        ToyPass(net, rank, PartsOf(model).context.state().engine().bootstrap().size(), number, 0, 1));
    return ToyUpdate(model, 1.0, nullptr);
  };
  SavedPieces saved;
  std::vector<float> uninterrupted;
  OnMesh({1, 2}, LoadInitialValues(kToySeed),
         [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
           WEFT_RETURN_IF_ERROR(step(net, model, rank, 0));
           saved.Add(ShardedState(model.Shards()));
           WEFT_RETURN_IF_ERROR(step(net, model, rank, 1));
           WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(model));
           if (rank == 0) uninterrupted = weights;
           return absl::OkStatus();
         });
  OnMesh({2, 1}, LoadFromState(saved.pieces),
         [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
           WEFT_RETURN_IF_ERROR(step(net, model, rank, 1));
           WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(model));
           EXPECT_EQ(weights, uninterrupted);
           return absl::OkStatus();
         });
}

TEST(StateDict, NamesTheArrayThatDoesNotFit) {
  WithToyModel(1, {}, [](ToyNet&, ShardedModel& model, int) -> absl::Status {
    std::vector<StatePiece> pieces = ShardedState(model.Shards());
    EXPECT_OK(FillShards(model.Shards(), LoadFromState(pieces)));
    EXPECT_THAT(FillShards(model.Shards(), LoadFromState(pieces, ".exp_avg")),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("no piece of 'net.gain.exp_avg'")));
    pieces[0].shape = {3, 2};
    EXPECT_THAT(
        FillShards(model.Shards(), LoadFromState(pieces)),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("'net.gain' is [3, 2] in the state"), HasSubstr("[6] in the model"))));
    pieces[0].shape = {6};
    pieces[0].elements.run_length = 5;
    EXPECT_THAT(FillShards(model.Shards(), LoadFromState(pieces)),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("'net.gain': element 5 ")));
    pieces.push_back(pieces[0]);
    pieces.back().shape = {7};
    EXPECT_THAT(
        FillShards(model.Shards(), LoadFromState(pieces)),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("disagree on its shape: [6] and [7]")));
    const auto gather = [&](absl::Span<const ShardView> shards) {
      return GatherFullState(model, shards, StateTarget::kEveryRank,
                             [](const Parameter&, absl::Span<const float>) { return absl::OkStatus(); });
    };
    std::vector<ShardView> shards = model.Shards();
    shards[0].piece.run_length = 5;
    EXPECT_THAT(gather(shards), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("hold 5 elements of 'net.gain' instead of 6")));
    WEFT_RETURN_IF_ERROR(model.ResetAfterError());
    shards[0].piece.run_length = 6;
    Parameter other = *shards[0].parameter;
    shards[0].parameter = &other;
    EXPECT_THAT(gather(shards), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("other parameters than those of the model")));
    return model.ResetAfterError();
  });
}

// As the moments of an optimizer that has none for some parameters. In the layouts of some meshes, some ranks
// hold no element of a parameter.
TEST(StateDict, LeavesOutParametersWithoutViews) {
  const auto is_kept = [](const std::string& name) {
    return name == "net.gain" || name == "layers.1.weight";
  };
  Arrays expected = InitialValues();
  std::erase_if(expected, [&](const auto& array) { return !is_kept(array.first); });
  ASSERT_EQ(expected.size(), 2);
  for (const MeshShape& shape : kMeshes) {
    OnMesh(shape, LoadInitialValues(kToySeed), [&](ToyNet&, ShardedModel& model, int rank) -> absl::Status {
      std::vector<ShardView> shards = model.Shards();
      std::erase_if(shards, [&](const ShardView& shard) { return !is_kept(shard.parameter->name); });
      for (const StateTarget target : {StateTarget::kEveryRank, StateTarget::kRankZero}) {
        Arrays arrays;
        WEFT_RETURN_IF_ERROR(GatherFullState(
            model, shards, target, [&](const Parameter& parameter, absl::Span<const float> values) {
              arrays.try_emplace(parameter.name, values.begin(), values.end());
              return absl::OkStatus();
            }));
        EXPECT_EQ(arrays, target == StateTarget::kEveryRank || rank == 0 ? expected : Arrays());
      }
      return absl::OkStatus();
    });
  }
}

// No rank has a view of such a parameter.
TEST(StateDict, GathersParametersWithoutElementsIfAllOthersHaveViews) {
  const auto names_of = [](ShardedModel& model, const std::vector<ShardView>& shards) {
    std::vector<std::string> names;
    EXPECT_OK(GatherFullState(model, shards, StateTarget::kEveryRank,
                              [&](const Parameter& parameter, absl::Span<const float> values) {
                                EXPECT_EQ(std::ssize(values), parameter.elements());
                                names.push_back(parameter.name);
                                return absl::OkStatus();
                              }));
    return names;
  };
  for (const MeshShape& shape : kMeshes) {
    OnMesh(shape, LoadInitialValues(kToySeed),
           [&](ToyNet&, ShardedModel& model, int) {
             std::vector<ShardView> shards = model.Shards();
             EXPECT_THAT(names_of(model, shards), ElementsAre("net.gain", "layers.0.weight", "layers.0.scale",
                                                              "layers.1.weight", "layers.1.scale"));
             std::erase_if(shards,
                           [](const ShardView& shard) { return shard.parameter->name != "net.gain"; });
             EXPECT_THAT(names_of(model, shards), ElementsAre("net.gain"));
             return absl::OkStatus();
           },
           {7, 0, 3});
  }
}

TEST(StateDict, LetsPeersFinishIfOneRankCannotWrite) {
  WithToyModel(2, {}, [](ToyNet&, ShardedModel& model, int rank) -> absl::Status {
    const absl::Status status = GatherFullState(
        model, model.Shards(), StateTarget::kRankZero,
        [](const Parameter&, absl::Span<const float>) { return absl::DataLossError("disk"); });
    EXPECT_EQ(status, rank == 0 ? absl::DataLossError("disk") : absl::OkStatus());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
