// Steps on simulated ranks: their pools and bytes against runs, their times, and the report on all meshes.
#include <optional>
#include <vector>

#include "src/train/plan/inputs.h"
#include "src/train/plan/memory_need.h"
#include "src/train/plan/run_plan.h"
#include "src/train/planner/memory_forecast.h"
#include "src/train/planner/plan_json.h"
#include "src/train/planner/replay.h"
#include "tests/train/train_run.h"
#include "weft/train/planner.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

const NodeMap kNumaNodes{{0, 0, 0, 0}, {0, 0, 1, 1}};

class Replay : public TrainRun {
 protected:
  Replay() { config_.parallel.wire_compression = WireCompression::kNone; }

  TrainConfig ConfigOf(const Mesh& mesh) const {
    TrainConfig config = config_;
    config.parallel.dp_replicate = mesh.replicate;
    config.parallel.dp_shard = mesh.shard;
    config.parallel.context.size = mesh.context;
    return config;
  }

  ReplayResult Forecast(const Mesh& mesh, const NodeMap& nodes, double part_ns = 1e6,
                        int max_full_ranks = 64) {
    const TrainConfig config = ConfigOf(mesh);
    auto inputs = OpenModel(config);
    EXPECT_OK(inputs);
    EXPECT_OK(CreateModel(*inputs));
    const auto plan = MakeRunPlan(config, *inputs, nodes);
    EXPECT_OK(plan);
    ModelTimes times;
    times.fill({.forward_ns = part_ns, .backward_ns = 2 * part_ns});
    const auto result = ReplayStep({.model = inputs->model,
                                    .lora = inputs->lora,
                                    .plan = *plan,
                                    .nodes = nodes,
                                    .times = times,
                                    .rates = {},
                                    .link = {.gigabits = 10, .latency_us = 20},
                                    .numa_gb_s = numa_gb_s_,
                                    .cores = 8,
                                    .threads = 1,
                                    .max_full_ranks = max_full_ranks});
    EXPECT_OK(result);
    return result.value_or(ReplayResult());
  }

  void ExpectBytesOfARun(const Mesh& mesh, const NodeMap& nodes) {
    SCOPED_TRACE(absl::StrCat(mesh.replicate, " x ", mesh.shard, " on ", nodes.node_count(), " nodes"));
    const Result result = Run(mesh, nodes);
    const StepMetrics run = result.steps.back();
    const ReplayResult forecast = Forecast(mesh, nodes);
    EXPECT_EQ(forecast.divisor, 1);
    // Groups are freed when they are updated, which takes longer on some ranks.
    if (!config_.optimizer.in_backward) {
      EXPECT_EQ(static_cast<int64_t>(forecast.peaks.shard_bytes), run.peak_bytes.shards);
    }
    EXPECT_EQ(static_cast<int64_t>(forecast.peaks.image_bytes), run.peak_bytes.images);
    // Gradients stay in the pool until they are reduced. How many groups wait at once depends on when the
    // ranks of a run get to them: from the largest alone to all of them, padded a little, and one that is
    // cast.
    auto inputs = OpenModel(config_);
    ASSERT_OK(inputs);
    // Counts the elements of adapters, of which all blocks have equally many.
    const auto model = CreateModel(*inputs);
    ASSERT_OK(model);
    const int64_t largest = config_.lora.enabled() ? inputs->adapter_elements / inputs->model.layers
                                                   : LargestGroup(inputs->model);
    const int64_t fewest = largest * static_cast<int64_t>(sizeof(float));
    const auto plan = MakeRunPlan(ConfigOf(mesh), *inputs, nodes);
    ASSERT_OK(plan);
    const int64_t cast = config_.parallel.param_dtype == DType::kF32 ? 0 : 2 * largest;
    const int64_t all = TrainedElements(inputs->model, *plan) * static_cast<int64_t>(sizeof(float)) + cast;
    const int64_t most = all + all / 20;
    for (const auto peak : {run.peak_bytes.gradients, static_cast<int64_t>(forecast.peaks.gradient_bytes)}) {
      EXPECT_GE(peak, fewest);
      EXPECT_LE(peak, most);
    }
    const MemoryNeed need = NeedOf(**model, *plan);
    const int64_t shards = need.weights + need.gradients + need.images;  // With casts that ranks share.
    constexpr int64_t kSpare = 8192;  // Values that ranks sum up, and blocks that are padded to cache lines.
    EXPECT_LE(run.peak_bytes.shards + run.peak_bytes.images,
              shards + CollectedMatrixBytes(inputs->model, *plan) + kSpare);
    EXPECT_LE(run.peak_bytes.gradients, need.full_gradients + kSpare);
    EXPECT_LE(forecast.context_peak_bytes, ContextBytes(inputs->model, *plan));
    // A tensor that a peer still reads keeps its memory. In a ring these are more.
    const double tensors = config_.parallel.context.scheme == CpScheme::kRing ? 0.5 : 0.15;
    EXPECT_NEAR(static_cast<double>(forecast.context_peak_bytes), static_cast<double>(run.peak_bytes.context),
                tensors * static_cast<double>(run.peak_bytes.context));
    const auto mean = [&](auto bytes) {
      int64_t sum = 0;
      for (const std::vector<StepMetrics>& steps : result.by_rank) sum += steps.back().bytes.*bytes;
      return sum / mesh.ranks();
    };
    using Bytes = decltype(StepMetrics::bytes);
    EXPECT_EQ(forecast.all_gather_bytes, mean(&Bytes::all_gather));
    EXPECT_EQ(forecast.reduce_scatter_bytes, mean(&Bytes::reduce_scatter));
    EXPECT_EQ(forecast.all_reduce_bytes, mean(&Bytes::all_reduce));
    EXPECT_EQ(forecast.context_bytes, mean(&Bytes::context));
    EXPECT_EQ(forecast.control_bytes, mean(&Bytes::control));
    EXPECT_EQ(forecast.optimizer_bytes, mean(&Bytes::optimizer));
  }
  std::optional<double> numa_gb_s_;
};

TEST_F(Replay, HasThePoolsAndBytesOfARun) {
  config_.model.layers = 4;
  ExpectBytesOfARun({1, 1}, NodeMap::OneNode(1));
  ExpectBytesOfARun({1, 4}, NodeMap::OneNode(4));
  ExpectBytesOfARun({2, 2}, NodeMap::RanksPerNode(4, 2));
  ExpectBytesOfARun({2, 1}, NodeMap::OneNode(2));
}

TEST_F(Replay, HasThePoolsOfARunInBf16WithMicrobatches) {
  config_.parallel.param_dtype = DType::kBF16;
  config_.data.grad_accum = 2;
  config_.data.batch_size = 8;
  ExpectBytesOfARun({1, 2}, NodeMap::OneNode(2));
}

TEST_F(Replay, HasAnImageForEachNumaNodeOverWhichAShardGroupLies) {
  EXPECT_EQ(Forecast({1, 4}, NodeMap::OneNode(4)).all_gather_bytes, 0);
  EXPECT_GT(Forecast({1, 4}, kNumaNodes).all_gather_bytes, 0);
  EXPECT_EQ(Forecast({2, 2}, kNumaNodes).all_gather_bytes, 0);  // Each shard group is on one NUMA node.
  config_.parallel.share_domain = ShareDomain::kNode;
  EXPECT_EQ(Forecast({1, 4}, kNumaNodes).all_gather_bytes, 0);
}

TEST_F(Replay, TakesLongerIfNumaNodesReadEachOtherSlowly) {
  const double fast_ms = Forecast({2, 2}, kNumaNodes, /*part_ns=*/1).step_ms;  // All-reduces cross.
  numa_gb_s_ = 0.1;
  EXPECT_GT(Forecast({2, 2}, kNumaNodes, /*part_ns=*/1).step_ms, 2 * fast_ms);
}

TEST_F(Replay, HasTheExchangesOfSplitSequences) {
  config_.model.heads = 4;
  config_.model.kv_heads = 2;
  ContextOptions& context = config_.parallel.context;
  context.scheme = CpScheme::kUlysses;
  ExpectBytesOfARun({1, 1, 2}, NodeMap::OneNode(2));
  context.scheme = CpScheme::kRing;
  ExpectBytesOfARun({1, 1, 2}, NodeMap::RanksPerNode(2, 1));
  context.scheme = CpScheme::kGather;
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  ExpectBytesOfARun({1, 2, 2}, NodeMap::RanksPerNode(4, 2));
}

TEST_F(Replay, ExchangesOnlyWhatIsTrainedOfAdapters) {
  config_.lora = {.rank = 2, .targets = "all-linear"};
  ExpectBytesOfARun({2, 2}, NodeMap::RanksPerNode(4, 2));
  const ReplayResult adapters = Forecast({1, 2}, NodeMap::OneNode(2));
  config_.lora = {};
  const ReplayResult all = Forecast({1, 2}, NodeMap::OneNode(2));
  EXPECT_GT(adapters.reduce_scatter_bytes, 0);
  EXPECT_LT(adapters.reduce_scatter_bytes, all.reduce_scatter_bytes);
  EXPECT_LT(adapters.peaks.shard_bytes, all.peaks.shard_bytes);
}

// The last rank of an unbalanced split has three quarters of the attention, but half of all other work.
TEST_F(Replay, GivesTheAttentionALargerShareOfTheBackwardWithAdapters) {
  config_.data.seq_len = 128;
  config_.lora = {.rank = 1, .targets = "all-linear"};
  ContextOptions& context = config_.parallel.context;
  context.scheme = CpScheme::kGather;
  context.load_balance = LoadBalance::kNone;
  auto inputs = OpenModel(config_);
  ASSERT_OK(inputs);
  ASSERT_OK(CreateModel(*inputs));
  PartShape shape = ShapeOf(inputs->model, 4, 128, DType::kF32, 1);
  shape.adapter_elements = inputs->adapter_elements / inputs->model.layers;
  const double attention =
      AttentionOperations(shape) / ForwardOperations(ModelPart::kBlock, shape) +
      2 * (2 * AttentionOperations(shape) / BackwardOperations(ModelPart::kBlock, shape));
  constexpr double kPartMs = 100;  // Exchanges take no time beside it. A backward takes twice as long.
  const double halves = (3 + 2) * 3 * kPartMs / 2;  // Of three parts and two blocks.
  const double quarters = 2 * attention * kPartMs / 4;
  const double step_ms = Forecast({1, 1, 2}, NodeMap::OneNode(2), kPartMs * 1e6).step_ms;
  EXPECT_NEAR(step_ms, halves + quarters, 0.003 * step_ms);
}

TEST_F(Replay, ExchangesTheSumsOfIndexers) {
  config_.attention.kind = AttentionKind::kDsa;
  ExpectBytesOfARun({1, 2}, NodeMap::OneNode(2));
}

// The gathers of a replay have equal parts, as of 18 tokens in place of 17.
TEST_F(Replay, GathersTheKeysOfSparseAttentionFromPartsOfDifferentSizes) {
  config_.attention.kind = AttentionKind::kDsa;
  config_.data.seq_len = 17;
  const NodeMap nodes = NodeMap::OneNode(3);
  int64_t largest = 0;
  for (const std::vector<StepMetrics>& steps : Run({1, 1, 3}, nodes).by_rank)
    largest = std::max(largest, steps.back().bytes.context);
  const int64_t forecast = Forecast({1, 1, 3}, nodes).context_bytes;
  EXPECT_GE(forecast, largest);
  EXPECT_LE(17 * forecast, 18 * largest);
}

TEST_F(Replay, MovesTheMatricesOfMuon) {
  config_.optimizer.kind = OptimizerKind::kMuon;
  ExpectBytesOfARun({1, 2}, NodeMap::OneNode(2));
  EXPECT_GT(Forecast({1, 2}, NodeMap::OneNode(2)).optimizer_bytes, 0);
}

TEST_F(Replay, TakesTheProductsOfMuonAtTheGivenRate) {
  const auto products_ms = [this](const char* flops) {
    PlanOptions options;
    options.flops = flops;
    options.all_meshes = false;
    options.costs_file = folder_.Write("costs.json", FormatCosts({}));
    TrainConfig config = config_;
    const auto others = ForecastStep(config, options);
    config.optimizer.kind = OptimizerKind::kMuon;
    const auto all = ForecastStep(config, options);
    EXPECT_OK(others);
    EXPECT_OK(all);
    return all.ok() && others.ok() ? all->step_ms - others->step_ms : 0;
  };
  const double slow_ms = products_ms("0.01gf");
  EXPECT_GT(slow_ms, 0);
  EXPECT_NEAR(slow_ms / products_ms("0.1gf"), 10, 0.1);
}

TEST_F(Replay, FreesGradientsThatAreUpdatedInBackward) {
  config_.model.layers = 6;
  const size_t after = Forecast({1, 2}, NodeMap::OneNode(2)).peaks.shard_bytes;
  config_.optimizer.kind = OptimizerKind::kSgd;
  config_.optimizer.in_backward = true;
  config_.optimizer.clip_grad_norm = 0;
  ExpectBytesOfARun({1, 2}, NodeMap::OneNode(2));
  const size_t shards = after / 2;  // Masters, and as many gradients.
  for (const size_t peak : {Forecast({1, 2}, NodeMap::OneNode(2)).peaks.shard_bytes,
                            static_cast<size_t>(Run({1, 2}).steps.back().peak_bytes.shards)}) {
    EXPECT_GT(peak, shards);
    EXPECT_LT(peak, after);
  }
}

TEST_F(Replay, OfOneNodeForAllHasThePoolsBytesAndTimeOfAll) {
  config_.data.batch_size = 16;
  auto inputs = OpenModel(config_);
  ASSERT_OK(inputs);
  // The largest gradient, padded a little.
  const int64_t one_gradient = LargestGroup(inputs->model) * static_cast<int64_t>(sizeof(float)) * 21 / 20;
  for (const Mesh& mesh : {Mesh{1, 16}, Mesh{4, 4}, Mesh{8, 2}, Mesh{2, 8}}) {
    SCOPED_TRACE(absl::StrCat(mesh.replicate, " x ", mesh.shard));
    const NodeMap nodes = NodeMap::RanksPerNode(16, 4);
    const ReplayResult all = Forecast(mesh, nodes);
    const ReplayResult one = Forecast(mesh, nodes, 1e6, /*max_full_ranks=*/1);
    EXPECT_LT(one.events, all.events / 2);
    EXPECT_EQ(one.peaks.shard_bytes, all.peaks.shard_bytes);
    EXPECT_EQ(one.peaks.image_bytes, all.peaks.image_bytes);
    // At the end of backward no computation lies between the gradients of the last two groups. The order of
    // events within microseconds decides if one waits for the reduction of the other.
    const auto difference =
        static_cast<int64_t>(one.peaks.gradient_bytes) - static_cast<int64_t>(all.peaks.gradient_bytes);
    EXPECT_LE(std::abs(difference), one_gradient);
    EXPECT_EQ(one.all_gather_bytes, all.all_gather_bytes);
    EXPECT_EQ(one.reduce_scatter_bytes, all.reduce_scatter_bytes);
    EXPECT_EQ(one.all_reduce_bytes, all.all_reduce_bytes);
    EXPECT_NEAR(one.step_ms / all.step_ms, 1, 0.02);
  }
}

TEST_F(Replay, TakesLongerIfLinksAreSlowerAndNeverLessThanTheComputation) {
  const ReplayResult one = Forecast({1, 1}, NodeMap::OneNode(1));
  const ReplayResult nodes = Forecast({1, 2}, NodeMap::RanksPerNode(2, 1));
  EXPECT_GE(one.step_ms, one.compute_ms);
  EXPECT_GT(nodes.step_ms - nodes.compute_ms, one.step_ms - one.compute_ms);
  EXPECT_GT(nodes.wire_bytes, 0);
  EXPECT_EQ(one.wire_bytes, 0);
}

// On one node each rank reads half of its peer's masters, and half of the gradients of its peer's shard.
TEST_F(Replay, ReadsGradientsOfReplicasForTrainedParametersOnly) {
  const NodeMap nodes = NodeMap::OneNode(4);
  for (const std::optional<int64_t> rank : {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    config_.lora = {.rank = rank, .targets = "all-linear"};
    auto inputs = OpenModel(ConfigOf({2, 2}));
    ASSERT_OK(inputs);
    const auto model = CreateModel(*inputs);
    ASSERT_OK(model);
    const auto plan = MakeRunPlan(ConfigOf({2, 2}), *inputs, nodes);
    ASSERT_OK(plan);
    const MemoryForecast memory = ForecastMemory(inputs->model, NeedOf(**model, *plan), *plan, nodes, {});
    EXPECT_EQ(memory.peers,
              inputs->model.ParameterCount() * 4 / 2 + TrainedElements(inputs->model, *plan) * 4 / 4);
  }
}

std::string ReportOf(const TrainConfig& config, const PlanOptions& options) {
  return PlanTraining(config, options).value_or(TrainingPlan()).report;
}

TEST_F(Replay, OfAllMeshesNamesTheFastestAndTheCommand) {
  config_.data.batch_size = std::nullopt;
  PlanOptions options;
  options.ranks = 2;
  options.cores = 2;
  options.memory_gib = 4;
  options.flops = "1gf";
  options.costs_file = folder_ / "costs.json";
  EXPECT_THAT(PlanTraining(config_, options).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("costs")));
  options.costs_file = folder_.Write("costs.json", FormatCosts({}));
  const auto plan = PlanTraining(config_, options);
  ASSERT_OK(plan);
  EXPECT_TRUE(plan->fits);
  EXPECT_THAT(plan->report, HasSubstr("1 sequence of 16 tokens for each data-parallel rank and microbatch,"));
  EXPECT_THAT(plan->report, HasSubstr("\n1 x 2 "));
  EXPECT_THAT(plan->report, HasSubstr("\n2 x 1 "));
  EXPECT_THAT(plan->report, HasSubstr("run:\n  mpirun -n 2 --bind-to none weft train --dp-replicate "));
  options.memory_gib = 1e-3;
  const auto without_memory = PlanTraining(config_, options);
  ASSERT_OK(without_memory);
  EXPECT_FALSE(without_memory->fits);
  EXPECT_THAT(without_memory->report, HasSubstr("No mesh fits."));
  config_.lora.rank = 4;
  EXPECT_THAT(ReportOf(config_, options), HasSubstr("adapters of rank 4"));
  config_.lora.rank = std::nullopt;
  config_.data.batch_size = 3;  // Two ranks cannot divide it, so no mesh has times.
  EXPECT_THAT(ReportOf(config_, options), Not(HasSubstr("; \n")));
  config_.data.batch_size = std::nullopt;
  options.numa_nodes = 2;
  options.memory_gib = 4;
  const std::string bound = ReportOf(config_, options);
  EXPECT_THAT(bound, HasSubstr("on each, 2 NUMA nodes"));
  EXPECT_THAT(bound, HasSubstr("mpirun -n 2 --map-by ppr:1:numa --bind-to numa:overload-allowed weft train"));
  options.numa_nodes = 3;
  EXPECT_THAT(
      PlanTraining(config_, options).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--numa-nodes 3: must divide the 2 ranks")));
  options.hosts = 3;
  EXPECT_THAT(PlanTraining(config_, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--hosts 3")));
}

TEST_F(Replay, NamesACommandThatStartsMoreRanksThanCores) {
  PlanOptions options;
  options.ranks = 4;
  options.cores = 2;
  options.memory_gib = 4;
  options.flops = "1gf";
  options.costs_file = folder_.Write("costs.json", FormatCosts({}));
  EXPECT_THAT(ReportOf(config_, options), HasSubstr("mpirun -n 4 --oversubscribe --bind-to none weft train"));
  options.hosts = 2;
  EXPECT_THAT(ReportOf(config_, options),
              HasSubstr("mpirun -n 4 --host HOST1:2,HOST2:2 --map-by ppr:2:node --bind-to none weft train"));
  options.ranks = 17;
  options.hosts = 17;
  config_.data.batch_size = std::nullopt;
  EXPECT_THAT(ReportOf(config_, options),
              HasSubstr("mpirun -n 17 --hostfile HOSTFILE --map-by ppr:1:node --bind-to none weft train"));
}

}  // namespace
}  // namespace weft
