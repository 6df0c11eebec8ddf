// Memory that a run may need, and the check of it.
#include "src/train/plan/memory_need.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/plan/parameter_sets.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/core/rounding.h"
#include "weft/nn/llama.h"
#include "weft/nn/lm_head_loss.h"
#include "weft/nn/matmul.h"
#include "weft/train/config.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

class MemoryNeedTest : public ::testing::Test {
 protected:
  MemoryNeedTest() {
    config_.data.paths = {folder_.Write("text.txt", std::string(10000, 'x'))};
    config_.model.layers = 2;
    config_.model.dim = 64;
    config_.model.heads = 4;
    config_.data.seq_len = 32;
    config_.data.batch_size = 8;
  }
  MemoryNeed Need(int ranks) {
    auto inputs = OpenInputs(config_);
    EXPECT_OK(inputs);
    const auto model = CreateModel(*inputs);
    EXPECT_OK(model);
    model_ = inputs->model;
    const auto plan = MakeRunPlan(config_, *inputs, NodeMap::OneNode(ranks));
    EXPECT_OK(plan);
    return NeedOf(**model, *plan);
  }

  TempFolder folder_;
  TrainConfig config_;
  LlamaConfig model_;
};

TEST_F(MemoryNeedTest, IsTwelveBytesAParameterAndMoreOnOneRank) {
  const MemoryNeed need = Need(1);
  EXPECT_EQ(need.weights, 4 * model_.ParameterCount());
  EXPECT_EQ(need.gradients, 0);  // The full gradients are those of the shard.
  EXPECT_EQ(need.full_gradients, 4 * model_.ParameterCount());
  EXPECT_EQ(need.moments, 8 * model_.ParameterCount());
  EXPECT_EQ(need.images, 0);
}

TEST_F(MemoryNeedTest, IsSharedByTheRanksOfAShardGroup) {
  config_.model.layers = 16;
  const MemoryNeed one = Need(1);
  const MemoryNeed four = Need(4);
  EXPECT_EQ(four.moments, one.moments / 4);
  EXPECT_EQ(four.activations, one.activations / 4);
  EXPECT_LT(four.total() - four.program, (one.total() - one.program) / 2);
}

TEST_F(MemoryNeedTest, HasTheMomentsOfOneReplicaIfTheySplitTheOptimizer) {
  config_.parallel.dp_replicate = 2;
  const MemoryNeed whole = Need(4);
  config_.parallel.shard_optimizer_over_replicas = true;
  EXPECT_EQ(Need(4).moments, whole.moments / 2);
}

TEST_F(MemoryNeedTest, CountsTheStatesOfEachOptimizer) {
  config_.model.kv_heads = 2;
  const int64_t parameters = Need(1).weights / 4;
  config_.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(Need(1).moments, 0);
  config_.optimizer.momentum = 0.9;
  EXPECT_EQ(Need(1).moments, 4 * parameters);
  config_.optimizer.kind = OptimizerKind::kMuon;
  const int64_t moments = Need(2).moments;
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(model_));
  int64_t states = 0;
  for (const auto& parameter : model->AllParameters()) {
    states += (IsHiddenMatrix(*parameter) ? 1 : 2) * parameter->elements();
  }
  EXPECT_EQ(moments, 4 * CeilDiv(states, 2));
  EXPECT_LT(states, 2 * parameters - parameters / 2);
}

TEST_F(MemoryNeedTest, HasCopiesForASaveWhileTrainingGoesOn) {
  config_.checkpoint.folder = folder_ / "checkpoints";
  const MemoryNeed without = Need(4);
  EXPECT_EQ(without.snapshots, 0);
  config_.checkpoint.async = true;
  const MemoryNeed need = Need(4);
  EXPECT_EQ(need.snapshots, CeilDiv(12 * model_.ParameterCount(), 4));  // Weights and two moments.
  EXPECT_EQ(need.total(), without.total() + need.snapshots);
  EXPECT_EQ(need.outside_of_node_memory(), without.outside_of_node_memory() + need.snapshots);
  EXPECT_THAT(need.ToString(), HasSubstr("of copies for a save"));
  config_.parallel.dp_replicate = 2;
  EXPECT_EQ(Need(4).snapshots, need.snapshots);  // Replicas share the writing.
  config_.lora = {.rank = 2};
  EXPECT_EQ(Need(4).snapshots, 12 * 2 * 2 * (2 * 2 * 64) / 4);
  config_.lora = {};
  config_.model.dim = 1024;
  config_.model.layers = 16;
  EXPECT_EQ(Need(4).snapshots, 256 << 20);
  config_.checkpoint.folder.clear();
  EXPECT_EQ(Need(4).snapshots, 0);
}

TEST_F(MemoryNeedTest, HasGradientsAndMomentsOfAdaptersAlone) {
  const MemoryNeed whole = Need(2);
  config_.lora = {.rank = 2};
  const MemoryNeed need = Need(2);
  const int64_t adapters = 2 * 2 * (2 * 2 * 64);  // A and B of two projections in two layers.
  EXPECT_EQ(need.weights, whole.weights + 4 * adapters / 2);
  EXPECT_EQ(need.gradients, 4 * adapters);  // Trained elements come first, so rank 0 has them.
  EXPECT_EQ(need.moments, 8 * adapters / 2);
  EXPECT_LT(need.full_gradients, whole.full_gradients);
  EXPECT_LT(need.activations, whole.activations);
}

TEST_F(MemoryNeedTest, HasFewerActivationsIfTheyAreRecomputed) {
  config_.model.layers = 8;
  const MemoryNeed kept = Need(1);
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  EXPECT_LT(Need(1).activations, kept.activations / 3);
}

TEST_F(MemoryNeedTest, HasTheSelectionsOfSparseAttention) {
  config_.model.layers = 8;
  config_.attention.kind = AttentionKind::kDsa;
  const auto activations = [&](int64_t top_k) {
    config_.attention.top_k = top_k;
    return Need(2).activations;
  };
  constexpr int64_t kTokens = 4 * 32;  // Of a rank.
  // A number and a score of each selected key in all layers, and the target of the loss in one.
  EXPECT_EQ(activations(8) - activations(4), kTokens * 4 * (8 * 8 + 4));
  EXPECT_EQ(activations(64), activations(32));  // A sequence has 32 keys.
  config_.data.document_separator = 0;          // A pack has those of 4 sequences.
  EXPECT_EQ(activations(64) - activations(32), kTokens * 32 * (8 * 8 + 4));
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  EXPECT_EQ(activations(8) - activations(4), kTokens * 4 * (8 + 4));
}

TEST_F(MemoryNeedTest, CountsTheParametersOfIndexers) {
  const MemoryNeed dense = Need(1);
  config_.attention.kind = AttentionKind::kDsa;
  const MemoryNeed sparse = Need(1);
  EXPECT_EQ(sparse.weights, 4 * model_.ParameterCount());
  EXPECT_GT(sparse.weights, dense.weights);
}

TEST_F(MemoryNeedTest, CountsBiasesAndWhatHeadNormsKeep) {
  ASSERT_OK_AND_ASSIGN(const TrainInputs inputs, OpenInputs(config_));
  ASSERT_OK_AND_ASSIGN(const RunPlan plan, MakeRunPlan(config_, inputs, NodeMap::OneNode(1)));
  LlamaConfig config = inputs.model;
  const auto need_of = [&] { return NeedOf(*LlamaModel::Create(config).value(), plan); };
  const MemoryNeed plain = need_of();
  config.traits.qkv_bias = config.traits.qk_norm = true;
  const MemoryNeed need = need_of();
  // In each of 2 layers, biases of 12 heads of 16, and norms of 2 heads; in f32.
  EXPECT_EQ(need.weights - plain.weights, 2 * (12 * 16 + 2 * 16) * 4);
  // The inputs of the norms of 8 heads, for 8 sequences of 32 tokens.
  EXPECT_EQ(need.activations - plain.activations, 8 * 32 * 2 * (8 * 16) * 4);
}

// Several groups wait for their reduction at once. In bf16, the image in place of every group stays.
TEST_F(MemoryNeedTest, HasTheGradientsThatWaitForTheirReductionAndAllImagesInPlace) {
  config_.model.layers = 20;
  const MemoryNeed need = Need(4);
  const int64_t head = 4 * model_.vocab_size * model_.dim;
  const int64_t block = (4 * model_.ParameterCount() - 2 * head) / model_.layers;
  EXPECT_GE(need.full_gradients, head + std::max(head + 2 * block, 3 * block));
  EXPECT_EQ(need.images, 0);
  config_.parallel.param_dtype = DType::kBF16;
  EXPECT_EQ(Need(4).images, 2 * CeilDiv(model_.ParameterCount(), 4));
  config_.parallel.grad_sync = GradientSync::kLast;
  config_.data.grad_accum = 2;
  EXPECT_GE(Need(4).full_gradients, 4 * model_.ParameterCount());
}

TEST_F(MemoryNeedTest, HasTheImagesOfAForwardAlone) {
  config_.lora.rank = 2;
  auto inputs = OpenInputs(config_);
  ASSERT_OK(inputs);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<LlamaModel> model, CreateModel(*inputs));
  int64_t elements = 0;
  for (const auto& parameter : model->AllParameters()) {
    parameter->requires_grad = false;
    elements += parameter->elements();
  }
  ASSERT_GT(elements, inputs->model.ParameterCount());
  ASSERT_OK_AND_ASSIGN(const ShareDomains domains,
                       ChooseShareDomains(NodeMap::OneNode(2), ShareDomain::kAuto));
  ShardingPolicy policy;
  const auto need = [&](Residency residency) { return NeedOfForward(*model, policy, domains, residency, 2); };
  EXPECT_EQ(need(Residency::kInPlace).weights, 4 * ((elements + 1) / 2));
  EXPECT_EQ(need(Residency::kInPlace).images, 0);
  EXPECT_EQ(need(Residency::kInPlace).full_gradients + need(Residency::kInPlace).gradients, 0);
  const int64_t some = need(Residency::kPrivate).images;
  EXPECT_GT(some, 0);
  policy.reshard_after_forward = policy.reshard_root_after_forward = false;
  const int64_t all = need(Residency::kPrivate).images;
  EXPECT_GE(all, 4 * elements);
  EXPECT_LT(some, all);
  policy.param_dtype = DType::kBF16;
  EXPECT_GE(need(Residency::kInPlace).images, 2 * (elements / 2));
  EXPECT_GE(need(Residency::kPrivate).images, 2 * elements);
  EXPECT_LT(need(Residency::kPrivate).images, all);
}

TEST_F(MemoryNeedTest, GrowsByTheLogitsOfAChunk) {
  for (const int64_t vocab_size : {256, 4096, 16384, 131072}) {
    for (const int64_t seq_len : {7, 32, 700}) {
      config_.model.vocab_size = vocab_size;
      config_.data.seq_len = seq_len;
      config_.data.batch_size = 2;
      config_.parallel.param_dtype = DType::kF32;
      EXPECT_EQ(Need(2).scratch, 0);
      config_.parallel.param_dtype = DType::kBF16;
      const int64_t logits = LogitsScratchBytes(seq_len, vocab_size, DType::kBF16);
      EXPECT_GE(logits, 4 * vocab_size * std::min<int64_t>(seq_len, 128));
      // Products of bf16 take scratch memory, too, on a CPU without instructions for them.
      const bool only_logits = UsesNativeMatmul(DType::kBF16) && PanelInstructions() != "AMX";
      const int64_t scratch = Need(2).scratch;
      EXPECT_GE(scratch, logits);
      if (only_logits) {
        EXPECT_EQ(scratch, logits);
      }
    }
  }
}

TEST_F(MemoryNeedTest, NamesFiguresAndRemediesIfItDoesNotFit) {
  const MemoryNeed need{.weights = int64_t{4} << 30, .moments = int64_t{8} << 30};
  // A run may take nine tenths of the memory.
  EXPECT_OK(CheckFits(need, 2, (int64_t{24} << 30) / 9 * 10 + 20, ": remedies"));
  EXPECT_THAT(
      CheckFits(need, 2, (int64_t{24} << 30) / 9 * 10 - 20, ": remedies"),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("2 ranks of a node need 24.0 GiB"), HasSubstr("only 24.0 GiB of the 26.7 GiB"),
                     HasSubstr("A rank needs 4.0 GiB of weights, 8.0 GiB of optimizer states: remedies"))));
}

TEST(SegmentBytes, LeaveRoomForMomentsAndActivations) {
  constexpr size_t kGiB = size_t{1} << 30;
  const MemoryNeed need{.weights = 4 * kGiB, .moments = 2 * kGiB, .activations = kGiB};
  // Nine tenths of the host for each of two ranks, without the three GiB outside of node memory.
  EXPECT_EQ(SegmentBytes({.host = 10 * kGiB}, 2, need), kGiB * 3 / 2);
  // /dev/shm may be smaller than the host's memory, and so may files.
  EXPECT_EQ(SegmentBytes({.host = 10 * kGiB, .file_system = kGiB * 5 / 2}, 2, need), kGiB * 9 / 8);
  EXPECT_EQ(SegmentBytes({.host = 10 * kGiB, .file_sizes = kGiB * 5 / 2}, 2, need), kGiB * 9 / 8);
  // Without room for that, the heap's error names what does not fit.
  EXPECT_EQ(SegmentBytes({.host = 4 * kGiB}, 2, need), size_t{64} << 20);
}

// Every rank maps the segments of both ranks, and needs three GiB outside of them.
TEST(SegmentBytes, LeaveHalfOfTheAddressesThatTheRunDoesNotNeed) {
  constexpr size_t kGiB = size_t{1} << 30;
  const MemoryNeed need{.weights = 4 * kGiB, .moments = 2 * kGiB, .activations = kGiB};
  const auto segment = [&](size_t addresses) {
    return SegmentBytes({.host = 100 * kGiB, .address_space = addresses}, 2, need);
  };
  EXPECT_EQ(segment(15 * kGiB), 5 * kGiB);
  EXPECT_EQ(segment(11 * kGiB), 4 * kGiB);
  // Without enough of them, the heap's error names what does not fit.
  EXPECT_EQ(segment(9 * kGiB), 3 * kGiB);
  EXPECT_EQ(segment(2 * kGiB), size_t{64} << 20);
}

// Every rank maps the segments of all ranks, and needs 34 MiB outside of them.
TEST(SegmentBytes, OfManyRanksFitIntoFewAddresses) {
  constexpr size_t kMiB = size_t{1} << 20;
  const MemoryNeed need{.weights = 40 * kMiB, .program = 34 * kMiB};
  const auto segment = [&](size_t addresses) {
    return SegmentBytes({.host = 1024 * 1024 * kMiB, .address_space = addresses}, 64, need);
  };
  EXPECT_EQ(segment((64 * 66 + 34) * kMiB), 52 * kMiB);
  EXPECT_EQ(segment((64 * 60 + 34) * kMiB), 50 * kMiB);
  EXPECT_EQ(segment((64 * 40 + 34) * kMiB), 40 * kMiB);
  EXPECT_EQ(segment(32 * kMiB), 0);  // The heap refuses it.
}

TEST_F(MemoryNeedTest, DoesNotOverflow) {
  const MemoryNeed need{.weights = INT64_MAX / 2};
  EXPECT_FALSE(CheckFits(need, 1000, INT64_MAX, "").ok());
}

}  // namespace
}  // namespace weft
