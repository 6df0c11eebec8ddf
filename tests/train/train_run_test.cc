// Whole runs over ranks that are threads: results that meshes and options do not change, evaluation, stop
// requests, and errors on which all ranks agree.
#include "tests/train/train_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <vector>

namespace weft {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST_F(TrainRun, StartsAtTheLossOfUniformPredictionsAndReducesIt) {
  config_.optimizer.steps = 40;
  const Result result = Run({1, 1});
  EXPECT_NEAR(result.steps.front().loss, std::log(256.0), 0.1);
  EXPECT_LT(result.steps.back().loss, 3.5);
  EXPECT_EQ(result.report.steps, 40);
}

TEST_F(TrainRun, FollowsTheLossesOfOneRankOnEveryMesh) {
  config_.optimizer.steps = 20;
  config_.data.batch_size = 12;
  ExpectLossesOfOneRank({{1, 2}, {1, 3}, {1, 4}, {2, 2}, {4, 1}});
}

TEST_F(TrainRun, FollowsTheLossesOfOneRankWithOddSizes) {
  config_.optimizer.steps = 20;
  config_.data.batch_size = 12;
  UseOddSizes();
  ExpectLossesOfOneRank({{1, 3}, {2, 2}, {1, 4}});
}

TEST_F(TrainRun, GivesTheSameBitsForEverySharding) {
  std::set<uint64_t> hashes;
  for (const Mesh mesh : {Mesh{1, 4}, Mesh{2, 2}, Mesh{4, 1}}) {
    for (const bool zero_copy : {true, false}) {
      for (const int prefetch : {0, 1, 2}) {
        for (const bool reshard : {true, false}) {
          config_.parallel.zero_copy = zero_copy;
          config_.parallel.node_shared = prefetch == 1 ? NodeShared::kOff : NodeShared::kAuto;
          config_.parallel.prefetch_depth = prefetch;
          config_.parallel.reshard_after_forward = reshard;
          hashes.insert(Run(mesh).report.weights_hash);
        }
      }
    }
  }
  EXPECT_EQ(hashes.size(), 1);
}

TEST_F(TrainRun, GivesTheSameBitsForEveryShardingWithEachOptimizer) {
  config_.data.grad_accum = 2;
  config_.data.batch_size = 8;
  config_.parallel.grad_sync = GradientSync::kLast;
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kMuon}) {
    config_.optimizer.kind = kind;
    config_.optimizer.momentum = 0.8;
    config_.optimizer.nesterov = true;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      config_.parallel.param_dtype = dtype;
      config_.parallel.zero_copy = true;
      const Result expected = Run({4, 1});
      EXPECT_LT(expected.steps.back().loss, expected.steps.front().loss);
      EXPECT_EQ(Run({1, 4}).report.weights_hash, expected.report.weights_hash);
      config_.parallel.zero_copy = false;
      EXPECT_EQ(Run({2, 2}).report.weights_hash, expected.report.weights_hash);
    }
  }
}

TEST_F(TrainRun, UpdatesInBackwardToTheSameBitsInLessMemory) {
  config_.optimizer.clip_grad_norm = 0;
  config_.optimizer.lr = 1e-3;
  config_.model.layers = 10;
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    config_.optimizer.kind = kind;
    for (const Mesh mesh : {Mesh{1, 2}, Mesh{2, 2}}) {
      config_.data.grad_accum = kind == OptimizerKind::kSgd ? 2 : 1;
      config_.data.batch_size = 8;
      config_.optimizer.in_backward = false;
      const Result after = Run(mesh);
      config_.optimizer.in_backward = true;
      const Result in_backward = Run(mesh);
      EXPECT_EQ(in_backward.report.weights_hash, after.report.weights_hash);
      for (size_t i = 0; i < after.steps.size(); ++i) {
        EXPECT_EQ(in_backward.steps[i].loss, after.steps[i].loss);
        EXPECT_EQ(in_backward.steps[i].grad_norm, after.steps[i].grad_norm);
      }
      if (config_.data.grad_accum > 1) continue;  // The sum of earlier microbatches stays.
      // A shard is half of the weights and of the gradients. Those of some groups are under way at a time.
      const int64_t shard = after.steps[1].peak_bytes.shards / 2;
      EXPECT_LT(in_backward.steps[1].peak_bytes.shards, shard + shard / 2);
    }
  }
}

TEST_F(TrainRun, EndsAtAGradientThatIsNotFiniteIfUpdatedInBackward) {
  config_.optimizer.clip_grad_norm = 0;
  config_.optimizer.in_backward = true;
  config_.optimizer.lr = 1e6;
  config_.optimizer.steps = 1000;
  EXPECT_THAT(RunError(2),
              ::weft::testing::StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("must be finite")));
}

TEST_F(TrainRun, MovesEachMatrixOfMuonAtMostOnceThereAndBack) {
  config_.optimizer.kind = OptimizerKind::kMuon;
  config_.optimizer.adamw_lr = 1e-3;
  const Result result = Run({1, 4}, NodeMap::RanksPerNode(4, 2));
  // Matrices of two layers of dim 16, with a key and value head of 8 elements and a feed-forward of 24.
  const int64_t momentum_bytes = 2 * 4 * (2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16);
  int64_t moved = 0;
  for (const auto& steps : result.by_rank) moved += steps[1].bytes.optimizer;
  EXPECT_GT(moved, 0);
  EXPECT_LE(moved, 2 * momentum_bytes * 3 / 4);
}

TEST_F(TrainRun, GivesTheSameBitsWithTheOptimizerShardedOverReplicas) {
  config_.data.batch_size = 8;
  config_.data.grad_accum = 2;
  config_.eval.paths = config_.data.paths;
  config_.eval.sequences = 8;
  config_.eval.interval = 2;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    config_.parallel.param_dtype = config_.parallel.reduce_dtype = dtype;
    for (const Mesh mesh : {Mesh{2, 2}, Mesh{4, 1}}) {
      config_.parallel.zero_copy = mesh.shard == 2;
      config_.parallel.shard_optimizer_over_replicas = false;
      const TrainReport reduced = Run(mesh, NodeMap::RanksPerNode(4, 2)).report;
      config_.parallel.shard_optimizer_over_replicas = true;
      const TrainReport scattered = Run(mesh, NodeMap::RanksPerNode(4, 2)).report;
      EXPECT_EQ(scattered.weights_hash, reduced.weights_hash) << mesh.shard << " in " << Name(dtype);
      EXPECT_EQ(scattered.eval_loss, reduced.eval_loss) << mesh.shard << " in " << Name(dtype);
    }
  }
}

TEST_F(TrainRun, ComparesReplicasOnlyIfThereAreAny) {
  config_.parallel.dp_replicate = 2;
  config_.parallel.dp_shard = 1;
  config_.parallel.check_replicas = 2;
  config_.optimizer.steps = 4;
  EXPECT_OK(RunError(2));
  config_.parallel.dp_replicate = 1;
  config_.parallel.dp_shard = 2;
  EXPECT_THAT(RunError(2), testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("--check-replicas 2: needs replicas")));
}

TEST_F(TrainRun, RefusesToShardTheOptimizerWithoutReplicas) {
  config_.parallel.shard_optimizer_over_replicas = true;
  EXPECT_THAT(RunError(2),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("--shard-optimizer-over-replicas true: needs replicas")));
}

TEST_F(TrainRun, GivesTheSameBitsForEveryNodeMap) {
  std::set<uint64_t> hashes;
  for (const int ranks_per_node : {1, 2, 4}) {
    hashes.insert(Run({2, 2}, NodeMap::RanksPerNode(4, ranks_per_node)).report.weights_hash);
  }
  EXPECT_EQ(hashes.size(), 1);
}

TEST_F(TrainRun, GivesTheSameBitsAndSendsFewerBytesWithWireCompression) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    config_.parallel.param_dtype = config_.parallel.reduce_dtype = dtype;
    for (const Mesh mesh : {Mesh{1, 4}, Mesh{2, 2}, Mesh{4, 1}}) {
      config_.parallel.wire_compression = WireCompression::kNone;
      const Result plain = Run(mesh, NodeMap::RanksPerNode(4, 2));
      config_.parallel.wire_compression = WireCompression::kLossless;
      const Result compressed = Run(mesh, NodeMap::RanksPerNode(4, 2));
      EXPECT_EQ(compressed.report.weights_hash, plain.report.weights_hash)
          << mesh.shard << " in " << Name(dtype);
      EXPECT_EQ(plain.steps[1].wire_saved_bytes, 0);
      // In f16 only the partial sums of several ranks of a node are compressed, which are in f32.
      EXPECT_EQ(compressed.steps[1].wire_saved_bytes > 0, dtype != DType::kF16 || mesh.replicate != 2);
      EXPECT_EQ(compressed.steps[1].copied_bytes, plain.steps[1].copied_bytes);
    }
  }
}

TEST_F(TrainRun, PrintsTheWireIfThereAreSeveralNodes) {
  EXPECT_THAT(Printed({1, 2}, NodeMap::RanksPerNode(2, 1)),
              ContainsRegex("\nwire +memory of this process  \\(between the 2 nodes\\)\n"));
  EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)), Not(HasSubstr("\nwire ")));
}

TEST_F(TrainRun, PrintsTheWireCompressionBetweenNodes) {
  EXPECT_THAT(Printed({1, 2}, NodeMap::RanksPerNode(2, 1)), HasSubstr("wire-compression  "));
  config_.parallel.wire_compression = WireCompression::kNone;
  EXPECT_THAT(Printed({1, 2}, NodeMap::RanksPerNode(2, 1)),
              HasSubstr("wire-compression  none  (--wire-compression)"));
  EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)), Not(HasSubstr("wire-compression")));
}

TEST_F(TrainRun, DependsOnTheSeed) {
  const uint64_t first = Run({1, 1}).report.weights_hash;
  EXPECT_EQ(Run({1, 1}).report.weights_hash, first);
  config_.seed = 1;
  EXPECT_NE(Run({1, 1}).report.weights_hash, first);
}

TEST_F(TrainRun, GivesMicrobatchesTheLossesOfOneBatch) {
  config_.data.batch_size = 8;
  const Result one = Run({1, 2});
  config_.data.grad_accum = 2;
  const Result two = Run({1, 2});
  for (size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_NEAR(two.steps[i].loss, one.steps[i].loss, 1e-5);
    EXPECT_NEAR(two.steps[i].grad_norm, one.steps[i].grad_norm, 1e-5);
  }
}

constexpr GradientSync kGradientSyncs[] = {GradientSync::kLast, GradientSync::kReduceScatter,
                                           GradientSync::kEach};

TEST_F(TrainRun, FollowsTheLossesOfOneRankWithEveryGradientSync) {
  config_.data.batch_size = 16;
  config_.data.grad_accum = 4;
  config_.optimizer.steps = 10;
  const Result one = Run({1, 1});
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  for (const GradientSync sync : kGradientSyncs) {
    config_.parallel.grad_sync = sync;
    const Result result = Run({2, 2});
    for (size_t i = 0; i < one.steps.size(); ++i) {
      EXPECT_NEAR(result.steps[i].loss / one.steps[i].loss, 1, 1e-5) << Name(sync);
    }
  }
}

TEST_F(TrainRun, FollowsTheLossesOfOneRankForFeedForwardsThatRanksDoNotDivide) {
  config_.data.batch_size = 8;
  config_.data.grad_accum = 2;
  config_.optimizer.steps = 10;
  for (const int64_t ffn_dim : {3, 16, 17}) {
    config_.model.ffn_dim = ffn_dim;
    const Result one = Run({1, 1});
    for (const ActivationCheckpoint checkpoint : {ActivationCheckpoint::kNone, ActivationCheckpoint::kFull}) {
      for (const bool reshard : {true, false}) {
        for (const GradientSync sync : {GradientSync::kLast, GradientSync::kReduceScatter}) {
          config_.parallel.activation_checkpoint = checkpoint;
          config_.parallel.reshard_after_forward = reshard;
          config_.parallel.grad_sync = sync;
          const Result result = Run({2, 2});
          for (size_t i = 0; i < one.steps.size(); ++i) {
            EXPECT_NEAR(result.steps[i].loss / one.steps[i].loss, 1, 1e-5) << "ffn " << ffn_dim;
          }
        }
      }
    }
  }
}

TEST_F(TrainRun, GivesTheSameBitsForEveryScheduleWithEachGradientSync) {
  config_.data.batch_size = 16;
  config_.data.grad_accum = 4;
  for (const GradientSync sync : kGradientSyncs) {
    config_.parallel.grad_sync = sync;
    std::set<uint64_t> hashes;
    for (const bool zero_copy : {true, false}) {
      for (const int prefetch : {0, 2}) {
        for (const ActivationCheckpoint checkpoint :
             {ActivationCheckpoint::kNone, ActivationCheckpoint::kFull}) {
          config_.parallel.zero_copy = zero_copy;
          config_.parallel.reshard_after_forward = prefetch == 2;
          config_.parallel.prefetch_depth = prefetch;
          config_.parallel.activation_checkpoint = checkpoint;
          hashes.insert(Run({2, 2}).report.weights_hash);
        }
      }
    }
    EXPECT_EQ(hashes.size(), 1) << Name(sync);
  }
}

TEST_F(TrainRun, KeepsLessThanAllGradientsIfEachMicrobatchIsReduced) {
  config_.model.layers = 16;  // So many that the root's group with its large tables does not dominate.
  config_.data.batch_size = 8;
  config_.data.grad_accum = 4;
  const int64_t by_shard = Run({1, 2}).steps.back().peak_bytes.gradients;
  config_.parallel.grad_sync = GradientSync::kLast;
  EXPECT_LT(by_shard, Run({1, 2}).steps.back().peak_bytes.gradients);
}

TEST_F(TrainRun, CopiesNothingWithZeroCopyAndCountsCopiesWithoutIt) {
  for (const StepMetrics& step : Run({2, 2}).steps) {
    EXPECT_EQ(step.copied_bytes, 0);
    EXPECT_EQ(step.bytes.context, 0);
    EXPECT_EQ(step.wire_bytes, 0);
    EXPECT_EQ(step.bytes.all_gather, 0);  // In place.
    EXPECT_GT(step.bytes.reduce_scatter, 0);
    EXPECT_GT(step.bytes.all_reduce, 0);
    EXPECT_GT(step.peak_buffer_bytes, 0);
  }
  config_.parallel.zero_copy = false;
  for (const StepMetrics& step : Run({2, 2}).steps) {
    EXPECT_GT(step.copied_bytes, 0);
  }
}

TEST_F(TrainRun, FollowsTheLearningRateSchedule) {
  config_.optimizer.warmup_steps = 2;
  config_.optimizer.lr_schedule = LrDecay::kLinear;
  const Result result = Run({1, 1});
  EXPECT_DOUBLE_EQ(result.steps[0].lr, 0.5e-2);
  EXPECT_DOUBLE_EQ(result.steps[1].lr, 1e-2);
  EXPECT_DOUBLE_EQ(result.steps[2].lr, 0);
}

TEST_F(TrainRun, GivesTheSameBitsOnEveryMeshIfOnlyMatricesDecay) {
  const uint64_t all = Run({2, 2}).report.weights_hash;
  config_.optimizer.decay = DecayScope::kMatrices;
  const uint64_t matrices = Run({2, 2}).report.weights_hash;
  EXPECT_NE(matrices, all);
  EXPECT_EQ(Run({1, 4}).report.weights_hash, matrices);
}

TEST_F(TrainRun, EvaluatesWithTheSameBitsOnEveryMesh) {
  config_.eval.paths = {
      folder_.Write("eval.txt", SomeText().substr(1234, 1600))};  // Two passes, the second one short.
  config_.optimizer.lr = 0;
  config_.data.batch_size = 12;
  const Result one = Run({1, 1});
  ASSERT_TRUE(one.report.eval_loss.has_value());
  for (const Mesh mesh : {Mesh{1, 2}, Mesh{1, 3}, Mesh{2, 2}, Mesh{4, 1}}) {
    EXPECT_EQ(Run(mesh).report.eval_loss, one.report.eval_loss) << mesh.replicate << "x" << mesh.shard;
  }
}

TEST_F(TrainRun, EvaluatesTheLossThatTrainingReportsForTheSameWindows) {
  config_.eval.paths = config_.data.paths;
  config_.optimizer.lr = 0;
  config_.optimizer.steps = 1;
  config_.data.shuffle = false;
  config_.eval.sequences = 240;
  config_.data.batch_size = 240;
  const Result all = Run({1, 2});
  EXPECT_NEAR(all.report.eval_loss.value(), all.report.loss, 1e-6);
  config_.eval.sequences = 8;
  config_.data.batch_size = 8;
  const Result few = Run({1, 2});
  EXPECT_NEAR(few.report.eval_loss.value(), few.report.loss, 1e-6);
  EXPECT_NE(few.report.eval_loss, all.report.eval_loss);
}

TEST_F(TrainRun, EvaluatesAtTheIntervalAndAfterTheLastStepWithoutChangingWeights) {
  config_.optimizer.steps = 5;
  const uint64_t without = Run({2, 2}).report.weights_hash;
  config_.eval.paths = config_.data.paths;
  config_.eval.interval = 2;
  const Result result = Run({2, 2});
  std::vector<int64_t> evaluated;
  for (const StepMetrics& step : result.steps) {
    if (step.eval_loss) {
      evaluated.push_back(step.step);
    }
  }
  EXPECT_THAT(evaluated, ::testing::ElementsAre(2, 4, 5));
  EXPECT_LT(*result.steps[4].eval_loss, *result.steps[1].eval_loss);
  EXPECT_EQ(result.report.weights_hash, without);
}

// A mask for SomeText in which about a third of the tokens have a loss, in runs of different lengths.
std::string SomeMask() {
  std::string mask(SomeText().size(), '\0');
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<char>((i * i / 50) % 3 == 0);
  return mask;
}

TEST_F(TrainRun, FollowsTheLossesOfOneRankWithALossMask) {
  folder_.Write("text.txt.mask", SomeMask());
  config_.data.loss_mask = true;
  config_.eval.paths = config_.data.paths;
  ExpectLossesOfOneRank({{1, 2}, {2, 2}, {1, 1, 2}});
  const double eval_loss = Run({1, 1}).report.eval_loss.value();
  EXPECT_NEAR(Run({2, 1, 2}).report.eval_loss.value() / eval_loss, 1, 1e-5);
}

TEST_F(TrainRun, WeighsTargetsAlikeWhetherTheyAreMaskedInOneRunOrInTwo) {
  config_.optimizer.steps = 1;
  const Result all = Run({1, 2});
  EXPECT_FALSE(all.steps[0].loss_tokens.has_value());
  double sum = 0;
  int64_t targets = 0;
  for (const bool inverted : {false, true}) {
    std::string mask = SomeMask();
    if (inverted) {
      for (char& byte : mask) byte = static_cast<char>(1 - byte);
    }
    folder_.Write("text.txt.mask", mask);
    config_.data.loss_mask = true;
    const StepMetrics step = Run({1, 2}).steps[0];
    sum += step.loss * static_cast<double>(*step.loss_tokens);
    targets += *step.loss_tokens;
  }
  EXPECT_EQ(targets, all.steps[0].tokens);
  EXPECT_NEAR(sum / static_cast<double>(targets), all.steps[0].loss, 1e-6);
}

TEST_F(TrainRun, GivesTheSameBitsWithAMaskOfAllTokens) {
  const uint64_t without = Run({1, 2}).report.weights_hash;
  folder_.Write("text.txt.mask", std::string(SomeText().size(), '\1'));
  config_.data.loss_mask = true;
  EXPECT_EQ(Run({1, 2}).report.weights_hash, without);
}

TEST_F(TrainRun, HasNoLossInAStepWithoutTargetsAndRefusesToEvaluateWithoutTargets) {
  folder_.Write("text.txt.mask", std::string(SomeText().size(), '\0'));
  config_.data.loss_mask = true;
  const Result result = Run({1, 2});
  EXPECT_EQ(result.steps[0].loss, 0);
  EXPECT_EQ(result.steps[0].grad_norm, 0);
  config_.eval.paths = config_.data.paths;
  EXPECT_THAT(RunError(2), testing::StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no token has a loss")));
}

TEST_F(TrainRun, RefusesEvaluationDataOfAnotherFormat) {
  config_.eval.paths = {folder_.Write("eval.u16", std::string(400, '\0'))};
  const absl::Status status = RunError(2);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("eval.u16' holds token ids"));
  config_.eval.paths = {folder_.Write("short.txt", "short")};
  EXPECT_THAT(std::string(RunError(2).message()), HasSubstr("--eval-data: the data has 5 tokens"));
}

TEST_F(TrainRun, TrainsInBf16CloseToFp32) {
  const Result exact = Run({1, 2});
  config_.parallel.param_dtype = DType::kBF16;
  config_.parallel.reduce_dtype = DType::kBF16;
  const Result rounded = Run({1, 2});
  for (size_t i = 0; i < exact.steps.size(); ++i) {
    EXPECT_NEAR(rounded.steps[i].loss, exact.steps[i].loss, 0.05);
  }
}

TEST_F(TrainRun, StopsAllRanksAfterTheSameStep) {
  config_.optimizer.steps = 1000;
  std::mutex mutex;
  std::set<int64_t> stopped_after;
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(3), [&](Bootstrap& bootstrap) -> absl::Status {
    TrainConfig config = config_;
    config.data.batch_size = 3;
    std::atomic<bool> stop{false};
    TrainEnvironment environment;
    environment.stop = &stop;
    environment.on_step = [&](const StepMetrics& metrics) {
      stop = bootstrap.rank() == 1 && metrics.step == 2;
    };
    WEFT_ASSIGN_OR_RETURN(const TrainReport report, Train(bootstrap, config, environment));
    EXPECT_TRUE(report.stopped);
    const std::lock_guard lock(mutex);
    stopped_after.insert(report.steps);
    return absl::OkStatus();
  }));
  EXPECT_EQ(stopped_after, std::set<int64_t>{3});
}

TEST_F(TrainRun, EndsOnAllRanksAtTheFirstStepWhoseLossOrGradientNormIsNotFinite) {
  config_.optimizer.lr = 1e6;
  config_.optimizer.steps = 1000;
  config_.data.batch_size = 3;
  config_.output.export_folder = folder_ / "out";
  std::mutex mutex;
  std::set<std::string> errors;
  std::vector<StepMetrics> steps;
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(3), [&](Bootstrap& bootstrap) -> absl::Status {
    TrainEnvironment environment;
    environment.on_step = [&](const StepMetrics& metrics) {
      if (bootstrap.rank() == 2) steps.push_back(metrics);
    };
    const absl::Status own = Train(bootstrap, config_, environment).status();
    EXPECT_EQ(own.code(), absl::StatusCode::kOutOfRange) << own;
    const std::lock_guard lock(mutex);
    errors.insert(std::string(own.message().substr(own.message().find("step"))));
    return absl::OkStatus();
  }));
  ASSERT_GT(steps.size(), 1);
  EXPECT_FALSE(std::isfinite(steps.back().loss) && std::isfinite(steps.back().grad_norm));
  EXPECT_TRUE(std::isfinite(steps[steps.size() - 2].loss));
  EXPECT_THAT(errors,
              ::testing::ElementsAre(HasSubstr(absl::StrCat("step ", steps.size(), ": the loss is "))));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(TrainRun, SkipsTheUpdateOfAStepThatIsNotFiniteOnAllRanksAlike) {
  config_.optimizer.lr = 1e6;
  config_.optimizer.steps = 30;
  config_.optimizer.max_skipped_steps = 30;
  const Result all = Run({2, 2});
  const auto first_skipped = std::find_if(all.steps.begin(), all.steps.end(),
                                          [](const StepMetrics& step) { return step.skipped_steps > 0; });
  ASSERT_NE(first_skipped, all.steps.end());
  EXPECT_EQ(first_skipped->skipped_steps, 1);
  EXPECT_FALSE(std::isfinite(first_skipped->loss) && std::isfinite(first_skipped->grad_norm));
  EXPECT_EQ(all.report.skipped_steps, all.steps.back().skipped_steps);
  for (const std::vector<StepMetrics>& of_rank : all.by_rank) {
    ASSERT_EQ(of_rank.size(), all.steps.size());
    for (size_t i = 0; i < of_rank.size(); ++i) {
      EXPECT_EQ(of_rank[i].skipped_steps, all.steps[i].skipped_steps) << i;
    }
  }
  // The skipped step leaves the weights as the step before made them.
  config_.optimizer.steps = first_skipped->step;
  const uint64_t after_skip = Run({2, 2}).report.weights_hash;
  config_.optimizer.steps = first_skipped->step - 1;
  EXPECT_EQ(Run({2, 2}).report.weights_hash, after_skip);
}

// Such weights are finite, and so is the loss of uniform predictions. Only the gradients overflow.
TEST_F(TrainRun, SkipsAStepWhoseGradientNormAloneIsNotFinite) {
  config_.optimizer.lr = 1e30;
  config_.optimizer.steps = 2;
  config_.optimizer.max_skipped_steps = 1;
  const std::vector<StepMetrics> steps = Run({2, 2}).steps;
  ASSERT_EQ(steps.size(), 2);
  EXPECT_TRUE(std::isfinite(steps[1].loss)) << steps[1].loss;
  EXPECT_FALSE(std::isfinite(steps[1].grad_norm)) << steps[1].grad_norm;
  EXPECT_EQ(steps[1].skipped_steps, 1);
}

TEST_F(TrainRun, EndsWhenItHasSkippedMoreStepsThanAllowed) {
  config_.optimizer.lr = 1e6;
  config_.optimizer.steps = 1000;
  config_.optimizer.max_skipped_steps = 2;
  EXPECT_THAT(RunError(2),
              testing::StatusIs(absl::StatusCode::kOutOfRange,
                                HasSubstr("3 steps were skipped, and --max-skipped-steps allows 2")));
}

TEST_F(TrainRun, EndsAtAnEvaluationWhoseLossIsNotFinite) {
  config_.optimizer.lr = 1e6;
  config_.eval.paths = config_.data.paths;
  config_.eval.interval = 1;
  EXPECT_THAT(RunError(2), testing::StatusIs(absl::StatusCode::kOutOfRange,
                                             HasSubstr("step 2: the loss on --eval-data is ")));
}

TEST_F(TrainRun, ExportsNoWeightsThatTheLastUpdateMadeInfinite) {
  config_.optimizer.lr = 1e39;  // Infinite in fp32.
  config_.optimizer.steps = 1;
  config_.output.export_folder = folder_ / "out";
  EXPECT_THAT(RunError(2),
              testing::StatusIs(absl::StatusCode::kOutOfRange,
                                HasSubstr("step 1: the weights are not finite after the update")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(TrainRun, FailsOnAllRanksWithTheErrorOfARankThatCannotReadItsData) {
  config_.optimizer.steps = 1000;
  config_.data.batch_size = 2;
  const std::string path = config_.data.paths[0];
  const absl::Status status = RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
    TrainEnvironment environment;
    environment.on_step = [&](const StepMetrics& metrics) {
      if (bootstrap.rank() == 1 && metrics.step == 2) {
        std::ofstream(path) << "short";
      }
    };
    const absl::Status own = Train(bootstrap, config_, environment).status();
    EXPECT_EQ(own.code(), absl::StatusCode::kDataLoss) << own;
    return own;
  });
  EXPECT_THAT(std::string(status.message()), HasSubstr("text.txt' ends at byte"));
}

TEST_F(TrainRun, RefusesAMeshBatchOrVocabularyThatDoesNotFit) {
  config_.parallel.dp_replicate = 3;
  EXPECT_THAT(std::string(RunError(2).message()), HasSubstr("--dp-replicate 3"));
  config_.parallel.dp_replicate = 1;
  config_.data.batch_size = 3;
  EXPECT_THAT(std::string(RunError(2).message()), HasSubstr("--batch-size 3"));
  config_.data.batch_size = 2;
  config_.model.vocab_size = 100;
  EXPECT_TRUE(absl::IsDataLoss(RunError(2)));
}

}  // namespace
}  // namespace weft
