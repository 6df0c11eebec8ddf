// Images that the ranks of a node share, on simulated ranks: ranges are used again without a fence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/simulated_results.h"

namespace weft::testing {
namespace {

size_t ResultsOver(DType dtype, const ToyStep& step) {
  size_t most = 0;
  for (const NodeMap& nodes : {NodeMap::RanksPerNode(4, 2), NodeMap{{0, 0, 0, 1}}}) {
    most = std::max(most, ResultsOver(25, nodes, OnlyShared(dtype), step));
  }
  return most;
}

TEST(NodeSharedSchedules, GiveTheSameGradientsHoweverLateFlagsAndRanksAre) {
  const auto step = [](ToyNet& net, ShardedModel& model, Bootstrap& rank,
                       std::vector<float>&) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank.rank()));
    EXPECT_EQ(model.counters().unshared_images, 0);
    WriteShards(model.Shards());
    return absl::OkStatus();
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) EXPECT_EQ(ResultsOver(dtype, step), 1) << Name(dtype);
}

// Reads the weights of the first layer, at its leisure, where the second's will come to lie: before or after
// it has submitted the gather of those.
absl::Status ReadWhereTheNextLies(ToyNet& net, ShardedModel& model, Bootstrap& rank, bool in_time,
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
  if (in_time) read_slowly();
  WEFT_ASSIGN_OR_RETURN(UnshardHandle second, model.Unshard(net.layer(1)));
  if (!in_time) read_slowly();
  WEFT_RETURN_IF_ERROR(second.Wait());
  EXPECT_EQ(net.layer(1).weight()->data.data, weights.data);
  WEFT_RETURN_IF_ERROR(model.Reshard(net.layer(1)));
  WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank.rank()));
  WriteShards(model.Shards());
  return absl::OkStatus();
}

TEST(NodeSharedSchedules, LeaveWhatARankReadsUntilItSubmitsTheNextGather) {
  const auto step = [](bool in_time) {
    return [in_time](ToyNet& net, ShardedModel& model, Bootstrap& rank, std::vector<float>& read) {
      return ReadWhereTheNextLies(net, model, rank, in_time, read);
    };
  };
  EXPECT_EQ(ResultsOver(DType::kF32, step(/*in_time=*/true)), 1);
  EXPECT_GT(ResultsOver(DType::kF32, step(/*in_time=*/false)), 1);
}

}  // namespace
}  // namespace weft::testing
