// Runs with several microbatches a step, and each way to reduce their gradients.
#include <set>

#include "tests/train/train_run.h"

namespace weft {
namespace {

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

// In bf16, 256 + 1 is 256. The windows are alike, so that each microbatch adds the same gradient.
TEST_F(TrainRun, AddsUpMicrobatchesInFp32InEveryDType) {
  config_.data.paths = {folder_.Write("alike.txt", std::string(2048, 'a'))};
  config_.data.seq_len = 2;
  config_.data.batch_size = 512;
  config_.data.grad_accum = 512;
  config_.optimizer.steps = 1;
  config_.parallel.grad_sync = GradientSync::kLast;
  for (const bool zero_copy : {true, false}) {
    config_.parallel.zero_copy = zero_copy;
    const double expected = Run({1, 1}).steps[0].grad_norm;
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      config_.parallel.param_dtype = config_.parallel.reduce_dtype = dtype;
      config_.optimizer.loss_scale = dtype == DType::kF16 ? "1024" : "";
      EXPECT_NEAR(Run({1, 1}).steps[0].grad_norm / expected, 1, 0.02) << Name(dtype);
    }
    config_.parallel.param_dtype = config_.parallel.reduce_dtype = DType::kF32;
    config_.optimizer.loss_scale = "";
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

}  // namespace
}  // namespace weft
