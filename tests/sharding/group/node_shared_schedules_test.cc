// Images shared on a node, on simulated ranks: ranges of the region are reused without a barrier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/simulated_results.h"

namespace weft::testing {
namespace {

size_t DistinctResults(DType dtype, const ToyStep& step) {
  size_t most_results = 0;
  for (const NodeMap& nodes : {NodeMap::RanksPerNode(4, 2), NodeMap{{0, 0, 0, 1}},
                               NodeMap{{0, 0, 0, 0}, {0, 1, 0, 1}}, NodeMap{{0, 0, 0, 1}, {0, 0, 1, 0}}}) {
    most_results = std::max(most_results, DistinctResults(25, nodes, SharedImages(dtype), step));
  }
  return most_results;
}

TEST(NodeSharedSchedules, GiveTheSameGradientsForEveryDelayOfFlagsAndRanks) {
  const auto step = [](ToyNet& net, ShardedModel& model, Bootstrap& rank,
                       std::vector<float>&) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank.rank()));
    EXPECT_EQ(model.counters().unshared_images, 0);
    WriteShards(model.Shards());
    return absl::OkStatus();
  };
  for (const DType dtype : {DType::kF32, DType::kBF16})
    EXPECT_EQ(DistinctResults(dtype, step), 1) << Name(dtype);
}

// Reads the first layer's weights slowly after their reshard, from the range that the second layer's weights
// will take: before (correct) or after (wrong) this rank submits the gather of the second layer.
absl::Status ReadAfterReshard(ToyNet& net, ShardedModel& model, Bootstrap& rank, bool before_gather,
                              std::vector<float>& read) {
  WEFT_ASSIGN_OR_RETURN(UnshardHandle first, model.Unshard(net.layer(0)));
  WEFT_RETURN_IF_ERROR(first.Wait());
  const TensorView weights = net.layer(0).weight()->data;
  WEFT_RETURN_IF_ERROR(model.Reshard(net.layer(0)));
  const auto read_slowly = [&] {
    rank.runtime().SleepFor(20'000);
    const std::vector<float> values = ReadValues(weights);
    read.insert(read.end(), values.begin(), values.end());
  };
  if (before_gather) read_slowly();
  WEFT_ASSIGN_OR_RETURN(UnshardHandle second, model.Unshard(net.layer(1)));
  if (!before_gather) read_slowly();
  WEFT_RETURN_IF_ERROR(second.Wait());
  EXPECT_EQ(net.layer(1).weight()->data.data, weights.data);
  WEFT_RETURN_IF_ERROR(model.Reshard(net.layer(1)));
  WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank.rank()));
  WriteShards(model.Shards());
  return absl::OkStatus();
}

TEST(NodeSharedSchedules, KeepAnImageUntilItsReaderSubmitsTheNextGather) {
  const auto step = [](bool before_gather) {
    return [before_gather](ToyNet& net, ShardedModel& model, Bootstrap& rank, std::vector<float>& read) {
      return ReadAfterReshard(net, model, rank, before_gather, read);
    };
  };
  EXPECT_EQ(DistinctResults(DType::kF32, step(/*before_gather=*/true)), 1);
  EXPECT_GT(DistinctResults(DType::kF32, step(/*before_gather=*/false)), 1);
}

}  // namespace
}  // namespace weft::testing
