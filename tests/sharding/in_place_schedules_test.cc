// Shards that are read in place, on simulated ranks: what orders readers and writers, and what comes of
// breaking it.
#include <functional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/shard_fences.h"
#include "tests/sharding/sharded_toy.h"
#include "tests/support/schedule_count.h"
#include "weft/core/hash.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

constexpr int kRanks = 4;

SimOptions MachineOf(uint64_t seed) {
  SimOptions machine;
  machine.seed = seed;
  machine.jitter = 10.0;
  machine.flag_ns = 2'000;
  machine.slow = {{static_cast<int>(seed % kRanks), 20.0}};
  return machine;
}

// A sharded net of a simulated rank, whose layers take some time.
using ToyBody = std::function<absl::Status(ToyNet&, ShardedModel&, Bootstrap&)>;
using ToyStep = std::function<absl::Status(ToyNet&, ShardedModel&, Bootstrap&, std::vector<float>& read)>;
absl::Status OnSimulatedRank(Bootstrap& bootstrap, DType dtype, const ToyBody& body) {
  WEFT_ASSIGN_OR_RETURN(const RankEngine engine, RankEngine::Make(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, kRanks));
  ToyNet net({6, 6, 6, 6});
  const auto nap = [&bootstrap](Module&, Invocation&, Tensors&) {
    bootstrap.runtime().Nap(10'000 * (1 + bootstrap.rank()));
    return absl::OkStatus();
  };
  ShardingPolicy policy = OnlyInPlace();
  policy.param_dtype = dtype;
  WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                     LoadInitialValues(kToySeed)));
  for (Module* block : net.blocks()) {
    block->AddForwardPreHook(nap);
    block->AddBackwardPreHook(nap);
  }
  return body(net, *model, bootstrap);
}

// Every shard moves by its own value: what a rank reads at the wrong time is another number.
void WriteShards(const std::vector<ShardView>& shards) {
  for (const ShardView& shard : shards) {
    for (int64_t i = 0; i < shard.elements(); ++i) shard.data[i] = 0.75F * shard.data[i] + 0.01F;
  }
}

// How many different gradients, and values read, come of the seeds. In each of three steps a rank writes its
// shards and runs a pass; `step` says how.
size_t ResultsOver(uint64_t seeds, DType dtype, const ToyStep& step) {
  std::set<uint64_t> results;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    std::vector<std::vector<float>> outcomes(kRanks);
    const SimReport report =
        RunSimulatedRanks(NodeMap::OneNode(kRanks), MachineOf(seed), [&](Bootstrap& bootstrap) {
          return OnSimulatedRank(bootstrap, dtype,
                                 [&](ToyNet& net, ShardedModel& model, Bootstrap& rank) -> absl::Status {
                                   auto& mine = outcomes[static_cast<size_t>(rank.rank())];
                                   for (int i = 0; i < 3; ++i) {
                                     WEFT_RETURN_IF_ERROR(step(net, model, rank, mine));
                                   }
                                   WEFT_RETURN_IF_ERROR(model.context().FinishBackward());
                                   for (const ShardView& shard : model.Shards()) {
                                     mine.insert(mine.end(), shard.grad, shard.grad + shard.elements());
                                   }
                                   return absl::OkStatus();
                                 });
        });
    EXPECT_OK(report.status());
    uint64_t hash = 0;
    for (const auto& mine : outcomes) hash = Hash64(mine.data(), mine.size() * sizeof(float), hash);
    results.insert(hash);
  }
  return results.size();
}

absl::Status TrainingStep(ToyNet& net, ShardedModel& model, Bootstrap& rank, std::vector<float>&) {
  WEFT_RETURN_IF_ERROR(ToyPass(net, rank.rank(), kRanks, 0, 0, 1));
  WriteShards(model.Shards());
  return absl::OkStatus();
}

TEST(InPlaceSchedules, GivesTheSameGradientsHoweverLateFlagsAndRanksAre) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_EQ(ResultsOver(ScheduleCount(50), dtype, TrainingStep), 1) << Name(dtype);
  }
}

// Ranks that have ended their backward write what others still read in theirs: masters, or casts of them.
TEST(InPlaceSchedules, GoesWrongWhereWritersDoNotWaitForReaders) {
  const auto step = [](ToyNet& net, ShardedModel& model, Bootstrap& rank, std::vector<float>& read) {
    model.SetIsLastBackward(false);
    absl::Status status = TrainingStep(net, model, rank, read);
    model.context().shard_fences()->ResetAfterError();  // A new pass, without waiting for anybody.
    return status;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_GT(ResultsOver(ScheduleCount(50), dtype, step), 1) << Name(dtype);
  }
}

// A block is used while other groups are still being written, by this rank and by others.
absl::Status UseTheFirstBlockEarly(ToyNet& net, ShardedModel& model, Bootstrap& rank, bool writes_before,
                                   std::vector<float>& read) {
  const ParamGroup& first = *model.groups()[1];
  if (writes_before) WriteShards(first.Shards());
  WEFT_ASSIGN_OR_RETURN(UnshardHandle handle, model.Unshard(net.layer(0)));
  rank.runtime().Nap(5'000);
  if (!writes_before) WriteShards(first.Shards());
  WEFT_RETURN_IF_ERROR(handle.Wait());
  const std::vector<float> values = ReadValues(net.layer(0).weight()->data);
  read.insert(read.end(), values.begin(), values.end());
  for (const auto& group : model.groups()) {
    if (group.get() != &first) WriteShards(group->Shards());
  }
  return ToyPass(net, rank.rank(), kRanks, 0, 0, 1);
}

TEST(InPlaceSchedules, UsesAGroupThatIsUnshardedBeforeOthersAreWritten) {
  const auto step = [](bool writes_before) {
    return [writes_before](ToyNet& net, ShardedModel& model, Bootstrap& rank, std::vector<float>& read) {
      return UseTheFirstBlockEarly(net, model, rank, writes_before, read);
    };
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_EQ(ResultsOver(ScheduleCount(50), dtype, step(/*writes_before=*/true)), 1) << Name(dtype);
  }
  // It says that it has written before it has.
  EXPECT_GT(ResultsOver(ScheduleCount(50), DType::kF32, step(/*writes_before=*/false)), 1);
}

}  // namespace
}  // namespace weft::testing
