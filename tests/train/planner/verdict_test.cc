// Verdicts on the memory of a run: that of `weft plan` against that of the start of `weft train`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/files/json.h"
#include "src/train/plan/inputs.h"
#include "src/train/plan/memory_need.h"
#include "src/train/plan/run_plan.h"
#include "tests/support/status_matchers.h"
#include "weft/train/config.h"
#include "weft/train/planner.h"

namespace weft {
namespace {

constexpr int64_t kRanks = 4;

// A model of TinyLlama's proportions, a sixteenth as wide.
TrainConfig SmallLlama(int64_t layers) {
  TrainConfig config;
  config.model.layers = layers;
  config.model.dim = 128;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.ffn_dim = 352;
  config.model.vocab_size = 2000;
  config.data.seq_len = 64;
  config.parallel.dp_replicate = 1;
  config.parallel.dp_shard = kRanks;
  return config;
}

absl::StatusOr<MemoryNeed> NeedOfRun(const TrainConfig& config) {
  WEFT_ASSIGN_OR_RETURN(TrainInputs inputs, OpenModel(config));
  WEFT_ASSIGN_OR_RETURN(const auto model, CreateModel(inputs));
  WEFT_ASSIGN_OR_RETURN(const RunPlan plan, MakeRunPlan(config, inputs, NodeMap::OneNode(kRanks)));
  return NeedOf(*model, plan);
}

bool FitsByPlan(const TrainConfig& config, int64_t memory) {
  PlanOptions options;
  options.ranks = kRanks;
  options.cores = 2;
  options.memory_gib = static_cast<double>(memory) / (1 << 30);
  options.flops = "10gf";
  options.all_meshes = false;
  options.json = true;
  const absl::StatusOr<TrainingPlan> plan = PlanTraining(config, options);
  EXPECT_OK(plan);
  if (!plan.ok()) return false;
  const bool fits = ParseJson(plan->report)["candidates"][0]["fits"];
  EXPECT_EQ(plan->fits, fits);
  return fits;
}

void ExpectSameVerdict(const TrainConfig& config) {
  ASSERT_OK_AND_ASSIGN(const MemoryNeed need, NeedOfRun(config));
  const int64_t limit = need.total() * kRanks / 9 * 10;
  for (const int64_t percent : {90, 99, 100, 110}) {
    const int64_t memory = limit / 100 * percent + 1024;
    const bool fits = CheckFits(need, kRanks, memory, "").ok();
    EXPECT_EQ(fits, percent >= 100);
    EXPECT_EQ(FitsByPlan(config, memory), fits) << percent << "% of the need";
    if (!fits) continue;
    // A run that fits has room in the segment, but for the granularity of its size.
    const auto free_bytes = static_cast<size_t>(memory);
    EXPECT_GE(SegmentBytes({.host = free_bytes}, kRanks, need) + (size_t{2} << 20),
              static_cast<size_t>(need.node_memory()));
  }
}

TEST(Verdict, IsTheSameForEveryNumberOfLayers) {
  for (const int64_t layers : {1, 7, 20}) {
    SCOPED_TRACE(layers);
    ExpectSameVerdict(SmallLlama(layers));
  }
}

TEST(Verdict, IsTheSameForEveryKindOfRun) {
  TrainConfig config = SmallLlama(5);
  config.parallel.param_dtype = DType::kBF16;
  ExpectSameVerdict(config);
  config.parallel.node_shared = NodeShared::kOff;
  ExpectSameVerdict(config);
  config.parallel.zero_copy = false;
  config.data.grad_accum = 2;
  config.parallel.grad_sync = GradientSync::kLast;
  ExpectSameVerdict(config);
  config = SmallLlama(5);
  config.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  config.optimizer.kind = OptimizerKind::kMuon;
  ExpectSameVerdict(config);
  config = SmallLlama(5);
  config.parallel.dp_shard = kRanks / 2;
  config.parallel.context.size = 2;
  ExpectSameVerdict(config);
}

}  // namespace
}  // namespace weft
