// Shards in place, on simulated ranks: the order of readers and writers, and the results without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/model/group_schedule.h"
#include "tests/sharding/support/simulated_results.h"

namespace weft::testing {
namespace {

size_t DistinctResults(DType dtype, const ToyStep& step) {
  return DistinctResults(50, NodeMap::OneNode(4), SharedImages(dtype), step);
}

absl::Status TrainingStep(ToyNet& net, ShardedModel& model, Bootstrap& rank, std::vector<float>&) {
  WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank.rank()));
  WriteShards(model.Shards());
  return absl::OkStatus();
}

TEST(InPlaceSchedules, GivesTheSameGradientsForEveryDelayOfFlagsAndRanks) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_EQ(DistinctResults(dtype, TrainingStep), 1) << Name(dtype);
  }
}

// A rank that has ended its backward writes shards that peers still read in theirs: masters, or casts of
// them.
TEST(InPlaceSchedules, GivesWrongGradientsIfWritersDoNotWaitForReaders) {
  const auto step = [](ToyNet& net, ShardedModel& model, Bootstrap& rank, std::vector<float>& read) {
    model.SetIsLastBackward(false);
    absl::Status status = TrainingStep(net, model, rank, read);
    // Starts a new epoch without a wait for readers.
    PartsOf(model).context.epochs().ResetAfterError();
    return status;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_GT(DistinctResults(dtype, step), 1) << Name(dtype);
  }
}

// Unshards and reads a block while all ranks still write the shards of other groups.
absl::Status UseTheFirstBlockEarly(ToyNet& net, ShardedModel& model, Bootstrap& rank, bool writes_before,
                                   std::vector<float>& read) {
  const ParamGroup& first = *PartsOf(model).groups[1];
  if (writes_before) WriteShards(first.Shards());
  WEFT_ASSIGN_OR_RETURN(UnshardHandle handle, model.Unshard(net.layer(0)));
  rank.runtime().SleepFor(5'000);
  if (!writes_before) WriteShards(first.Shards());
  WEFT_RETURN_IF_ERROR(handle.Wait());
  const std::vector<float> values = ReadValues(net.layer(0).weight()->data);
  read.insert(read.end(), values.begin(), values.end());
  for (const auto& group : PartsOf(model).groups) {
    if (group.get() != &first) WriteShards(group->Shards());
  }
  return ToyPassOf(net, model, rank.rank());
}

TEST(InPlaceSchedules, LetsAGroupBeReadBeforeOtherGroupsAreWritten) {
  const auto step = [](bool writes_before) {
    return [writes_before](ToyNet& net, ShardedModel& model, Bootstrap& rank, std::vector<float>& read) {
      return UseTheFirstBlockEarly(net, model, rank, writes_before, read);
    };
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_EQ(DistinctResults(dtype, step(/*writes_before=*/true)), 1) << Name(dtype);
  }
  // Wrong: Unshard says that the shard is written, and the rank writes it afterwards.
  EXPECT_GT(DistinctResults(DType::kF32, step(/*writes_before=*/false)), 1);
}

}  // namespace
}  // namespace weft::testing
