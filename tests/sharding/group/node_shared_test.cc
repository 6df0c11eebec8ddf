// Images shared on each node or NUMA node, for shard groups that span several.
#include <algorithm>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "tests/sharding/support/shared_images.h"

namespace weft::testing {
namespace {

const NodeMap kTwoAndOne = {{0, 0, 1}};
const NodeMap kTwoAndTwo = {{0, 0, 1, 1}};
const NodeMap kAlternating = {{0, 1, 0, 1}};

ShardingPolicy WithoutPrefetch(DType dtype = DType::kF32) {
  ShardingPolicy policy = SharedImages(dtype);
  policy.prefetch_depth = 0;
  return policy;
}

TEST(NodeShared, GivesTheBitsOfPrivateImagesOnEveryNodeMap) {
  for (const NodeMap& nodes : {kTwoAndOne, kTwoAndTwo, kAlternating}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (int depth = 0; depth <= ShardingPolicy::kMaxPrefetchDepth; ++depth) {
        ToyRun run{.shard = nodes.size(), .microbatches = depth == 1 ? 2 : 1};
        run.policy.param_dtype = dtype;
        run.policy.prefetch_depth = depth;
        run.policy.reshard_root_after_forward = depth == 2;
        run.checkpoint = depth == 2;
        ExpectTheBitsOfPrivateImages(nodes, run);
      }
    }
  }
}

const NodeMap kTwoNumaNodes = {{0, 0, 0, 0}, {0, 0, 1, 1}};
const NodeMap kAlternatingNumaNodes = {{0, 0, 0, 0, 1, 1}, {0, 1, 0, 1, 0, 0}};

TEST(NodeShared, GivesTheBitsOfPrivateImagesWithAnImageForEachNumaNode) {
  for (const NodeMap& nodes : {kTwoNumaNodes, kAlternatingNumaNodes}) {
    for (const FlatKind layout : {FlatKind::kContiguous, FlatKind::kRows}) {
      // The formula of packed bytes assumes nodes that are equally full.
      if (layout == FlatKind::kRows && nodes.node_count() > 1) continue;
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        ToyRun run{.shard = nodes.size(), .microbatches = 2};
        run.policy.layout = layout;
        run.policy.param_dtype = dtype;
        ExpectTheBitsOfPrivateImages(nodes, run);
      }
    }
  }
}

TEST(NodeShared, GivesTheSameWeightsForEveryShareDomain) {
  ToyRun run{.replicate = 2, .shard = 4};
  std::vector<std::vector<float>> weights;
  // Bound to NUMA nodes, on one of which a shard group lies, and not bound.
  for (const std::vector<int>& numa :
       {std::vector<int>{0, 0, 1, 1, 2, 2, 2, 2}, {0, 1, 0, 1, 0, 1, 0, 1}, {}}) {
    weights.push_back(TrainOnThreads({std::vector<int>(8, 0), numa}, run).weights);
    EXPECT_EQ(weights.back(), weights.front());
  }
}

// A rank commits the pages of its own segment, so they lie on the NUMA node to which it is bound.
TEST(NodeShared, LetsRanksOfANumaNodeReadOneCopyInTheirOwnSegments) {
  std::vector<const void*> places(4);
  WithToyModel(kTwoNumaNodes, SharedImages(),
               [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
                 WEFT_ASSIGN_OR_RETURN(UnshardHandle handle, model.Unshard(net.layer(1)));
                 WEFT_RETURN_IF_ERROR(handle.Wait());
                 const void* place = net.layer(1).weight()->data.data;
                 places[static_cast<size_t>(rank)] = place;
                 const CommEngine& engine = PartsOf(model).context.state().engine();
                 const std::optional<NodeAddress> address = engine.heap().AddressOf(place);
                 EXPECT_TRUE(address && engine.share_domains().map.SameNode(address->rank, rank));
                 return model.Reshard(net.layer(1));
               });
  EXPECT_EQ(places[0], places[1]);
  EXPECT_EQ(places[2], places[3]);
  EXPECT_NE(places[0], places[2]);
}

TEST(NodeShared, GivesTheBitsOfPrivateImagesWithoutResharding) {
  ToyRun run{.shard = 4};
  run.policy.reshard_after_forward = false;
  ExpectTheBitsOfPrivateImages(kTwoAndTwo, run);
}

// Two shard groups of three ranks: two ranks on one node, one on the other.
TEST(NodeShared, GivesTheBitsOfPrivateImagesOverReplicas) {
  for (const bool optimizer_over_replicas : {true, false}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ToyRun run{.replicate = 2, .shard = 3};
      run.policy.param_dtype = dtype;
      run.policy.shard_optimizer_over_replicas = optimizer_over_replicas;
      ExpectTheBitsOfPrivateImages({{0, 0, 1, 1, 0, 0}}, run);
    }
  }
}

TEST(NodeShared, CountsOneRegionPerNodeInEqualSharesOfItsRanks) {
  WithToyModel(kTwoAndOne, WithoutPrefetch(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    const auto bytes = [&](size_t group) {
      return static_cast<size_t>(PartsOf(model).groups[group]->layout().image_elements()) * sizeof(float);
    };
    const size_t region = bytes(0) + bytes(1);  // The root and the running block.
    EXPECT_EQ(model.peaks().image_bytes, rank < 2 ? region / 2 : region);
    return absl::OkStatus();
  });
}

TEST(NodeShared, LetsRanksOfANodeReadOneCopy) {
  std::vector<const void*> places(4);
  WithToyModel(kTwoAndTwo, SharedImages(), [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(UnshardHandle handle, model.Unshard(net.layer(1)));
    WEFT_RETURN_IF_ERROR(handle.Wait());
    places[static_cast<size_t>(rank)] = net.layer(1).weight()->data.data;
    return model.Reshard(net.layer(1));
  });
  EXPECT_EQ(places[0], places[1]);
  EXPECT_EQ(places[2], places[3]);
  EXPECT_NE(places[0], places[2]);
}

TEST(NodeShared, GathersPrivatelyIfTheRegionHasNoRoom) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    WithToyModel(kTwoAndOne, WithoutPrefetch(dtype),
                 [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
                   WEFT_ASSIGN_OR_RETURN(const std::vector<float> expected, ToyWeights(model));
                   EXPECT_EQ(model.counters().unshared_images, 0);
                   std::vector<float> all;
                   for (const auto& group : PartsOf(model).groups)
                     WEFT_RETURN_IF_ERROR(group->Unshard(Priority::kPrefetch));
                   for (const auto& group : PartsOf(model).groups) {
                     WEFT_RETURN_IF_ERROR(group->WaitUnshard());
                     for (const auto& parameter : group->parameters()) {
                       const std::vector<float> values = ReadValues(parameter->data);
                       all.insert(all.end(), values.begin(), values.end());
                     }
                   }
                   EXPECT_EQ(all, expected);
                   EXPECT_EQ(model.counters().unshared_images, 2);  // Two of the four groups fit.
                   WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
                   const int64_t unshared = model.counters().unshared_images;
                   WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
                   EXPECT_EQ(model.counters().unshared_images, unshared);
                   return ToyUpdate(model, 1.0, nullptr);
                 });
  }
}

TEST(NodeShared, CastsAShardOncePerEpoch) {
  WithToyModel(kTwoAndOne, SharedImages(DType::kBF16),
               [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
                 const auto copied = [&] { return model.counters().copied_bytes; };
                 WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
                 const int64_t once = copied();
                 for (const ShardView& shard : model.Shards())
                   std::fill_n(shard.data, shard.elements(), 0.5F);
                 WEFT_ASSIGN_OR_RETURN(const std::vector<float> written, ToyWeights(model));
                 EXPECT_THAT(written, ::testing::Each(0.5F));
                 WEFT_ASSIGN_OR_RETURN(const std::vector<float> again, ToyWeights(model));
                 EXPECT_EQ(copied(), 2 * once);
                 return absl::OkStatus();
               });
}

TEST(NodeShared, CastsAgainAfterAWriteWhileGroupsStayedUnsharded) {
  WithToyModel(kTwoAndOne, SharedImages(DType::kBF16),
               [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
                 model.SetReshardAfterBackward(false);
                 WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
                 for (const ShardView& shard : model.Shards())
                   std::fill_n(shard.data, shard.elements(), 0.25F);
                 model.ZeroGradients();  // Reshards the groups.
                 WEFT_ASSIGN_OR_RETURN(const std::vector<float> written, ToyWeights(model));
                 EXPECT_THAT(written, ::testing::Each(0.25F));
                 return absl::OkStatus();
               });
}

}  // namespace
}  // namespace weft::testing
