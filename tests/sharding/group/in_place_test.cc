// Shards in place, in a training loop.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "tests/sharding/support/shared_images.h"
#include "tests/support/test_timeout.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

TEST(InPlace, GivesTheBitsOfPrivateImagesInBf16) {
  for (const auto& [replicate, shard] : {std::pair{1, 2}, {1, 3}, {2, 2}}) {
    for (const bool reshard : {true, false}) {
      ToyRun run{.replicate = replicate, .shard = shard, .microbatches = reshard ? 2 : 1};
      run.policy.param_dtype = DType::kBF16;
      run.policy.reshard_after_forward = reshard;
      ExpectTheBitsOfPrivateImages(NodeMap::OneNode(run.ranks()), run);
    }
  }
  ToyRun over_replicas{.replicate = 2, .shard = 2};
  over_replicas.policy.param_dtype = over_replicas.policy.reduce_dtype = DType::kBF16;
  over_replicas.policy.shard_optimizer_over_replicas = true;
  ExpectTheBitsOfPrivateImages(NodeMap::OneNode(over_replicas.ranks()), over_replicas);
}

TEST(InPlace, GivesTheBitsOfPrivateImagesIfGroupsDifferInDType) {
  ToyRun run{.shard = 2};
  run.policy.dtypes_of = [](const Parameter& parameter) {
    const bool narrow = parameter.name.find("layers.1") != std::string::npos;
    return ParameterDTypes{.param = narrow ? DType::kBF16 : DType::kF32};
  };
  const ToyOutcome mixed = TrainOnThreads(NodeMap::OneNode(2), run);
  ExpectTheBitsOfPrivateImages(NodeMap::OneNode(run.ranks()), run);
  run.policy.dtypes_of = nullptr;
  EXPECT_NE(TrainOnThreads(NodeMap::OneNode(2), run).weights, mixed.weights);
}

TEST(InPlace, ReadsShardsThatWereWrittenAfterAnyPass) {
  WithToyModel(2, SharedImages(DType::kBF16), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    const auto write = [&](float value) {
      for (const ShardView& shard : model.Shards()) std::fill_n(shard.data, shard.elements(), value);
    };
    const auto evaluate = [&]() -> absl::StatusOr<std::vector<float>> {
      Invocation invocation(/*gradients=*/false);
      WEFT_ASSIGN_OR_RETURN(const Tensors outputs, net.Forward(invocation, {ToyInputs(0, 1, 6)}));
      return ReadValues(outputs[0].view());
    };
    write(0.5F);
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> half, evaluate());
    write(0.25F);
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> quarter, evaluate());
    EXPECT_NE(quarter, half);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    write(0.5F);
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> again, evaluate());
    EXPECT_EQ(again, half);
    return absl::OkStatus();
  });
}

// A rule that writes the casts of the shards that `casts` selects, and twice their values.
ShardUpdate Doubling(std::function<bool(const ShardView&)> casts) {
  return [casts = std::move(casts)](absl::Span<const ShardView> shards) {
    for (const ShardView& shard : shards) {
      for (int64_t i = 0; i < shard.elements(); ++i) shard.data[i] *= 2.0F;
      if (shard.cast == nullptr || !casts(shard)) continue;
      ConvertRun(shard.data, DType::kF32, shard.cast->data, shard.cast->dtype, shard.elements());
      shard.cast->is_written = true;
    }
    return absl::OkStatus();
  };
}

// Updates of an epoch write all casts, some or none of them, in any order. The parameters are the casts of
// the masters.
TEST(InPlace, ShowsTheLastUpdateWhicheverCastsItWrote) {
  const auto all = [](const ShardView&) { return true; };
  const auto none = [](const ShardView&) { return false; };
  const auto some = [](const ShardView& shard) { return shard.parameter->shape.size() == 1; };
  const std::vector<std::vector<std::function<bool(const ShardView&)>>> updates = {
      {all}, {none}, {some}, {all, none}, {none, all}, {all, some}, {all, all}};
  for (const FlatKind layout : {FlatKind::kContiguous, FlatKind::kRows}) {
    ShardingPolicy policy = SharedImages(DType::kBF16);
    policy.layout = layout;
    WithToyModel(2, policy, [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
      std::vector<Module*> modules = net.blocks();
      modules.push_back(&net);
      float factor = 1.0F;
      for (size_t i = 0; i < updates.size(); ++i) {
        WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank, static_cast<int>(i)));
        model.ZeroGradients();
        for (const auto& casts : updates[i]) {
          // Ranks need not agree on what their updates write.
          WEFT_RETURN_IF_ERROR(model.UpdateShards(Doubling(rank == 0 ? casts : all)));
          factor *= 2.0F;
        }
        for (Module* module : modules) {
          WEFT_ASSIGN_OR_RETURN(UnshardHandle handle, model.Unshard(*module));
          WEFT_RETURN_IF_ERROR(handle.Wait());
          for (const auto& parameter : module->parameters()) {
            std::vector<float> expected(static_cast<size_t>(parameter->elements()));
            WEFT_RETURN_IF_ERROR(
                LoadInitialValues(kToySeed)(*parameter, 0, parameter->elements(), expected.data()));
            for (float& value : expected) value = ToFloat(ToBF16(value * factor));
            EXPECT_EQ(ReadValues(parameter->data), expected) << "updates " << i << " of " << parameter->name;
          }
          WEFT_RETURN_IF_ERROR(model.Reshard(*module));
        }
        WEFT_RETURN_IF_ERROR(model.BeginWriting());
      }
      return absl::OkStatus();
    });
  }
}

// An update that claims casts which it has not written leaves the old ones: the group does not cast again.
TEST(InPlace, CastsOnceIfAnUpdateHasWrittenTheCasts) {
  WithToyModel(2, SharedImages(DType::kBF16), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    model.ZeroGradients();
    const auto evaluate = [&]() -> absl::StatusOr<std::vector<float>> {
      Invocation invocation(/*gradients=*/false);
      WEFT_ASSIGN_OR_RETURN(const Tensors outputs, net.Forward(invocation, {ToyInputs(0, 1, 6)}));
      return ReadValues(outputs[0].view());
    };
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> old, evaluate());
    WEFT_RETURN_IF_ERROR(model.UpdateShards([](absl::Span<const ShardView> shards) {
      for (const ShardView& shard : shards) {
        std::fill_n(shard.data, shard.elements(), 0.25F);
        if (shard.cast == nullptr) return absl::InternalError("no place for a cast");
        shard.cast->is_written = true;
      }
      return absl::OkStatus();
    }));
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> unchanged, evaluate());
    EXPECT_EQ(unchanged, old);
    return absl::OkStatus();
  });
}

TEST(InPlace, CastsNothingForGroupsThatStayedUnsharded) {
  WithToyModel(2, SharedImages(DType::kBF16), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    const int64_t casts = model.counters().copied_bytes;
    model.SetReshardAfterBackward(false);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    model.SetReshardAfterBackward(true);
    EXPECT_EQ(model.counters().copied_bytes, 2 * casts);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_EQ(model.counters().copied_bytes, 2 * casts);  // Peers may already read the casts.
    return absl::OkStatus();
  });
}

TEST(InPlace, TakesTwoBarriersPerStep) {
  for (const int microbatches : {1, 3}) {
    const DType dtype = microbatches == 1 ? DType::kF32 : DType::kBF16;
    ShardingPolicy policy = SharedImages(dtype);
    policy.unused_gradients = UnusedGradients::kZero;  // The others take one all-reduce per step.
    WithToyModel(2, policy, [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
      const auto step = [&](int number) -> absl::Status {
        for (int i = 0; i < microbatches; ++i) {
          model.SetRequiresGradientSync(i + 1 == microbatches);
          model.SetIsLastBackward(i + 1 == microbatches);
          WEFT_RETURN_IF_ERROR(ToyPass(net, rank, 2, number, i, microbatches));
        }
        return absl::OkStatus();
      };
      WEFT_RETURN_IF_ERROR(step(0));
      model.ZeroGradients();
      const int64_t before = PartsOf(model).context.state().engine().counters().operations;
      WEFT_RETURN_IF_ERROR(step(1));
      WEFT_RETURN_IF_ERROR(PartsOf(model).context.state().engine().status());
      // In addition to the reductions of three blocks and the root. The engine may count a barrier of the
      // previous step, or not yet count the last one.
      const int64_t operations = PartsOf(model).context.state().engine().counters().operations - before;
      EXPECT_THAT(operations, ::testing::AllOf(::testing::Ge(4 + 2 - 1), ::testing::Le(4 + 2 + 1)));
      EXPECT_EQ(model.counters().all_gathers, 0);
      return absl::OkStatus();
    });
  }
}

TEST(InPlace, KeepsItsValuesForReadersAfterTheModelIsDestroyed) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    ToyNet net({6, 6, 6});
    WEFT_ASSIGN_OR_RETURN(auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, SharedImages(),
                                                 LoadInitialValues(kToySeed)));
    for (const auto& group : PartsOf(*model).groups) {
      WEFT_RETURN_IF_ERROR(group->Unshard(Priority::kCritical));
      WEFT_RETURN_IF_ERROR(group->WaitUnshard());
    }
    const auto barrier = [&] { return bootstrap.AllGatherBlob("", kTestTimeout).status(); };
    WEFT_RETURN_IF_ERROR(barrier());
    if (bootstrap.rank() == 1) {
      model.reset();
      // Overwrites the heap's free memory, so that a reader of freed memory sees other values.
      WEFT_ASSIGN_OR_RETURN(std::byte * block, engine.heap->Allocate(size_t{4} << 20));
      std::memset(block, 0xFF, size_t{4} << 20);
      engine.heap->Free(block);
    }
    WEFT_RETURN_IF_ERROR(barrier());
    if (bootstrap.rank() == 0) {
      for (const auto& parameter : net.AllParameters()) {
        std::vector<float> expected(static_cast<size_t>(parameter->elements()));
        WEFT_RETURN_IF_ERROR(
            LoadInitialValues(kToySeed)(*parameter, 0, parameter->elements(), expected.data()));
        EXPECT_EQ(ReadValues(parameter->data), expected);
      }
      model.reset();
    }
    WEFT_RETURN_IF_ERROR(barrier());
    // All memory is free again: there is room for another model.
    WEFT_ASSIGN_OR_RETURN(const auto again, FullyShard(net, net.blocks(), mesh, *engine.engine,
                                                       SharedImages(), LoadInitialValues(kToySeed)));
    return ToyPass(net, bootstrap.rank(), 2, 0, 0, 1);
  });
}

// In bf16 shared images stay beside the masters; private ones exist while they are used.
TEST(InPlace, BecomesPrivateIfNodeMemoryHasNoRoomUnlessItIsRequired) {
  const std::vector<int64_t> sizes(13, 256);
  constexpr size_t kWeights = size_t{12} * (256 * 256 + 256);
  for (const NodeMap& nodes : {NodeMap::OneNode(2), NodeMap::RanksPerNode(4, 2)}) {
    RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(bootstrap.size() / 2, 2));
      // Room for masters and the images of a few blocks, but not for all images.
      const size_t free_bytes = engine.heap->segment_bytes() - engine.heap->allocated_bytes();
      WEFT_ASSIGN_OR_RETURN(std::byte * ballast,
                            engine.heap->Allocate(free_bytes - sizeof(float) * kWeights / 2 * 11 / 8));
      ToyNet net(sizes);
      ShardingPolicy policy;
      policy.param_dtype = DType::kBF16;
      policy.node_shared = NodeShared::kOn;
      EXPECT_THAT(
          FullyShard(net, net.blocks(), mesh, *engine.engine, policy, LoadInitialValues(kToySeed)).status(),
          StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cannot allocate")));
      policy.node_shared = NodeShared::kAuto;
      WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                         LoadInitialValues(kToySeed)));
      EXPECT_EQ(model->residency().residency, Residency::kPrivate);
      EXPECT_THAT(model->residency().reason,
                  ::testing::AllOf(HasSubstr("node memory has no room for images that ranks share"),
                                   HasSubstr("are free")));
      Invocation invocation(/*gradients=*/false);
      WEFT_RETURN_IF_ERROR(net.Forward(invocation, {ToyInputs(0, 3, 256)}).status());
      engine.heap->Free(ballast);
      return absl::OkStatus();
    });
  }
}

TEST(InPlace, CopiesIntoForeignStorage) {
  WithToyModel(2, SharedImages(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    Parameter& weight = *net.layer(0).weight();
    std::vector<float> storage(static_cast<size_t>(weight.elements()));
    const std::vector<float> whole = [&] {
      EXPECT_OK(PartsOf(model).groups[1]->Unshard(Priority::kCritical));
      EXPECT_OK(PartsOf(model).groups[1]->WaitUnshard());
      std::vector<float> values = ReadValues(weight.data);
      EXPECT_OK(PartsOf(model).groups[1]->Reshard());
      return values;
    }();
    weight.data = TensorView::Contiguous(storage.data(), DType::kF32, weight.shape);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_EQ(storage, whole);
    EXPECT_EQ(weight.data.data, storage.data());
    return ToyUpdate(model, 1.0, nullptr);
  });
}

// A custom collective that the engine runs.
class EngineCollective : public PendingCollective {
 public:
  explicit EngineCollective(Work work) : work_(std::move(work)) {}
  absl::Status Wait() override { return work_.Wait(); }
  absl::Status WaitReleased() override { return work_.WaitReleased(); }
  bool TestReleased() const override { return work_.TestReleased(); }

 private:
  Work work_;
};

TEST(InPlace, UsesPrivateImagesForACustomAllGather) {
  WithToyModel(2, SharedImages(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    CommEngine& engine = PartsOf(model).context.state().engine();
    WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.AddLane(PartsOf(model).context.lanes().shard_group(),
                                                            LanePurpose::kAllGather));
    const auto gather = [&](const AllGatherRequest& request) -> StartedCollective {
      return std::make_unique<EngineCollective>(
          engine.AllGather(lane, request.part, request.gathered, request.dtype, request.gathered_elements));
    };
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> in_place, ToyWeights(model));
    PartsOf(model).groups[2]->SetCustomAllGather(gather);
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> gathered, ToyWeights(model));
    EXPECT_EQ(gathered, in_place);
    EXPECT_EQ(model.counters().all_gathers, 1);
    model.ResetPeaks();
    for (int step = 0; step < 2; ++step) {
      WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank, step));
      WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr));
    }
    EXPECT_GT(model.peaks().image_bytes, 0);
    PartsOf(model).groups[2]->SetCustomAllGather(nullptr);
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> afterwards, ToyWeights(model));
    EXPECT_NE(afterwards, in_place);
    return ToyPassOf(net, model, rank, 2);
  });
}

}  // namespace
}  // namespace weft::testing
