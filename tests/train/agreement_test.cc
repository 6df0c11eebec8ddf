// Ranks with different flags, data or models get an error before the first collective of training.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/plan/inputs.h"
#include "src/train/plan/run_properties.h"
#include "tests/train/train_run.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

class Agreement : public TrainRun {
 protected:
  // The error of a run on three ranks, in which `change` alters the configuration of rank 1.
  absl::Status RunWithChangeOnRank1(const std::function<void(TrainConfig&)>& change) {
    return RunThreadRanks(NodeMap::OneNode(3), [&](Bootstrap& bootstrap) {
      TrainConfig config = config_;
      config.data.batch_size = 6;
      if (bootstrap.rank() == 1) change(config);
      return Train(bootstrap, config, {}).status();
    });
  }
};

TEST_F(Agreement, NamesTheFlagItsValuesAndTheRanks) {
  EXPECT_THAT(RunWithChangeOnRank1([](TrainConfig& config) { config.optimizer.lr = 0.125; }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--lr is 0.01 on ranks 0, 2 and 0.125 on rank 1"))));
}

TEST_F(Agreement, IsRequiredOfEveryFlagThatChangesResultsOrCollectives) {
  // Data beside which there is a mask, with the name of the others' data.
  const std::string masked = folder_.Write("masked/text.txt", SomeText());
  folder_.Write("masked/text.txt.mask", std::string(SomeText().size(), '\1'));
  const auto dsa = [](TrainConfig& config) -> AttentionConfig& {
    config.attention.kind = AttentionKind::kDsa;
    return config.attention;
  };
  const auto ddp = [](TrainConfig& config) -> ParallelOptions& {
    config.parallel.dp_replicate = 3;
    config.parallel.dp_shard = 1;
    return config.parallel;
  };
  const std::map<std::string, std::function<void(TrainConfig&)>> changes = {
      {"--model", [](TrainConfig& config) { config.model.ffn_dim = 32; }},
      {"--dsa-topk", [&](TrainConfig& config) { dsa(config).top_k = 4; }},
      {"--dsa-index-heads", [&](TrainConfig& config) { dsa(config).index_heads = 2; }},
      {"--dsa-index-dim", [&](TrainConfig& config) { dsa(config).index_dim = 8; }},
      {"--dsa-warmup-steps", [&](TrainConfig& config) { dsa(config).warmup_steps = 1; }},
      {"--dsa-loss-coef", [&](TrainConfig& config) { dsa(config).loss_coef = 0.5; }},
      {"--lora-alpha", [](TrainConfig& config) { config.lora = {.rank = 2, .alpha = 4}; }},
      {"--lora-targets", [](TrainConfig& config) { config.lora = {.rank = 2, .targets = "up_proj"}; }},
      {"--lora-dropout", [](TrainConfig& config) { config.lora = {.rank = 2, .dropout = 0.5}; }},
      {"--loss-mask",
       [&](TrainConfig& config) {
         config.data.paths = {masked};
         config.data.loss_mask = true;
       }},
      {"--eval-interval",
       [](TrainConfig& config) {
         config.eval = {config.data.paths, 1, std::nullopt};
       }},
      {"--eval-sequences",
       [](TrainConfig& config) {
         config.eval = {config.data.paths, 0, 4};
       }},
      {"--lr", [](TrainConfig& config) { config.optimizer.lr = 0.125; }},
      {"--dp-replicate", [&](TrainConfig& config) { ddp(config); }},
      {"--shard-optimizer-over-replicas",
       [&](TrainConfig& config) { ddp(config).shard_optimizer_over_replicas = true; }},
      {"--check-replicas", [&](TrainConfig& config) { ddp(config).check_replicas = 1; }},
      {"--cp", [](TrainConfig& config) { config.parallel.context.size = 3; }},
      {"--cp-scheme", [](TrainConfig& config) { config.parallel.context.scheme = CpScheme::kRing; }},
      {"--ulysses-degree", [](TrainConfig& config) { config.parallel.context.ulysses_degree = 1; }},
      {"--ring-rotate",
       [](TrainConfig& config) { config.parallel.context.ring_rotate = RingRotation::kAllGather; }},
      {"--load-balance",
       [](TrainConfig& config) { config.parallel.context.load_balance = LoadBalance::kNone; }},
      {"--metrics", [this](TrainConfig& config) { config.output.metrics_file = folder_ / "m.jsonl"; }},
      {"--tensorboard", [this](TrainConfig& config) { config.output.tensorboard_folder = folder_ / "t"; }},
      {"--trace", [this](TrainConfig& config) { config.output.trace_file = folder_ / "t.json"; }},
      {"--trace-steps", [](TrainConfig& config) { config.output.trace_steps = "1:2"; }},
      {"--seed", [](TrainConfig& config) { config.seed = 1; }},
      {"--attention", [](TrainConfig& config) { config.attention.kind = AttentionKind::kDsa; }},
      {"--seq-len", [](TrainConfig& config) { config.data.seq_len = 8; }},
      {"--batch-size", [](TrainConfig& config) { config.data.batch_size = 12; }},
      {"--grad-accum", [](TrainConfig& config) { config.data.grad_accum = 2; }},
      {"--document-separator", [](TrainConfig& config) { config.data.document_separator = 100; }},
      {"--shuffle", [](TrainConfig& config) { config.data.shuffle = false; }},
      {"--steps", [](TrainConfig& config) { config.optimizer.steps = 4; }},
      {"--optimizer", [](TrainConfig& config) { config.optimizer.kind = OptimizerKind::kSgd; }},
      {"--optimizer-in-backward", [](TrainConfig& config) { config.optimizer.in_backward = true; }},
      {"--momentum",
       [](TrainConfig& config) { config.optimizer = {.momentum = 0.5, .kind = OptimizerKind::kSgd}; }},
      {"--nesterov",
       [](TrainConfig& config) { config.optimizer = {.kind = OptimizerKind::kSgd, .nesterov = true}; }},
      {"--adamw-lr",
       [](TrainConfig& config) { config.optimizer = {.adamw_lr = 0.5, .kind = OptimizerKind::kMuon}; }},
      {"--muon-lr-scale", [](TrainConfig& config) { config.optimizer = {.kind = OptimizerKind::kMuon}; }},
      {"--warmup-steps", [](TrainConfig& config) { config.optimizer.warmup_steps = 1; }},
      {"--lr-schedule", [](TrainConfig& config) { config.optimizer.lr_schedule = LrDecay::kCosine; }},
      {"--min-lr-ratio", [](TrainConfig& config) { config.optimizer.min_lr_ratio = 0.5; }},
      {"--weight-decay", [](TrainConfig& config) { config.optimizer.weight_decay = 0; }},
      {"--decay", [](TrainConfig& config) { config.optimizer.decay = DecayScope::kMatrices; }},
      {"--clip-grad-norm", [](TrainConfig& config) { config.optimizer.clip_grad_norm = 2; }},
      {"--beta1", [](TrainConfig& config) { config.optimizer.beta1 = 0.5; }},
      {"--beta2", [](TrainConfig& config) { config.optimizer.beta2 = 0.5; }},
      {"--eps", [](TrainConfig& config) { config.optimizer.eps = 1e-7; }},
      {"--max-skipped-steps", [](TrainConfig& config) { config.optimizer.max_skipped_steps = 1; }},
      {"--loss-scale", [](TrainConfig& config) { config.optimizer.loss_scale = "8"; }},
      {"--loss-scale-growth-interval",
       [](TrainConfig& config) { config.optimizer.loss_scale_growth_interval = 8; }},
      {"--dp-shard", [](TrainConfig& config) { config.parallel.dp_shard = 3; }},
      {"--zero-copy", [](TrainConfig& config) { config.parallel.zero_copy = false; }},
      {"--node-shared", [](TrainConfig& config) { config.parallel.node_shared = NodeShared::kOff; }},
      {"--share-domain", [](TrainConfig& config) { config.parallel.share_domain = ShareDomain::kNone; }},
      {"--reshard-after-forward", [](TrainConfig& config) { config.parallel.reshard_after_forward = false; }},
      {"--prefetch-depth", [](TrainConfig& config) { config.parallel.prefetch_depth = 0; }},
      {"--checkpoint-dir",
       [this](TrainConfig& config) { config.checkpoint.folder = folder_ / "checkpoints"; }},
      {"--checkpoint-interval", [](TrainConfig& config) { config.checkpoint.interval = 3; }},
      {"--keep-checkpoints", [](TrainConfig& config) { config.checkpoint.keep = 4; }},
      {"--checkpoint-async", [](TrainConfig& config) { config.checkpoint.async = true; }},
      {"--resume", [](TrainConfig& config) { config.checkpoint.resume = "auto"; }},
      {"--wire-compression",
       [](TrainConfig& config) { config.parallel.wire_compression = WireCompression::kLossless; }},
      {"--grad-sync", [](TrainConfig& config) { config.parallel.grad_sync = GradientSync::kEach; }},
      {"--activation-checkpoint",
       [](TrainConfig& config) { config.parallel.activation_checkpoint = ActivationCheckpoint::kFull; }},
      {"--param-dtype", [](TrainConfig& config) { config.parallel.param_dtype = DType::kBF16; }},
      {"--reduce-dtype", [](TrainConfig& config) { config.parallel.reduce_dtype = DType::kBF16; }},
      {"--export-dtype", [](TrainConfig& config) { config.output.export_dtype = DType::kBF16; }},
      {"--export-hf", [this](TrainConfig& config) { config.output.export_folder = folder_ / "out"; }},
      {"--lora-rank", [](TrainConfig& config) { config.lora = {.rank = 2}; }},
      {"--export-merged", [](TrainConfig& config) { config.output.export_merged = true; }},
  };
  ASSERT_OK_AND_ASSIGN(const TrainInputs inputs, OpenInputs(config_));
  ASSERT_OK_AND_ASSIGN(const std::vector<RunProperty> properties, PropertiesOf(config_, inputs));
  for (const RunProperty& property : properties) {
    if (!property.name.starts_with("--")) continue;
    SCOPED_TRACE(property.name);
    const auto change = changes.find(property.name);
    ASSERT_NE(change, changes.end()) << "add a change of this flag";
    EXPECT_THAT(RunWithChangeOnRank1(change->second),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat(property.name, " is "))));
  }
}

TEST_F(Agreement, IsRequiredOfTheFlagsOfSparseAttention) {
  config_.attention.kind = AttentionKind::kDsa;
  const std::pair<const char*, std::function<void(AttentionConfig&)>> changes[] = {
      {"--dsa-topk is 512 on ranks 0, 2 and 4", [](AttentionConfig& options) { options.top_k = 4; }},
      {"--dsa-index-heads is 4 ", [](AttentionConfig& options) { options.index_heads = 2; }},
      {"--dsa-index-dim is 32 ", [](AttentionConfig& options) { options.index_dim = 8; }},
      {"--dsa-warmup-steps is 0 ", [](AttentionConfig& options) { options.warmup_steps = 1; }},
      {"--dsa-loss-coef is 1 ", [](AttentionConfig& options) { options.loss_coef = 0.5; }},
  };
  for (const auto& [message, change] : changes) {
    EXPECT_THAT(RunWithChangeOnRank1([&change = change](TrainConfig& config) { change(config.attention); }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

TEST_F(Agreement, NamesDifferentModels) {
  EXPECT_THAT(
      RunWithChangeOnRank1([](TrainConfig& config) { config.model.ffn_dim = 32; }),
      StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("--model is"), HasSubstr("ffn 32"))));
}

TEST_F(Agreement, NamesDataOfTheSameSizeWithOtherContent) {
  std::string other = SomeText();
  std::swap(other[0], other[5]);
  const std::string path = folder_.Write("other/text.txt", other);
  EXPECT_THAT(
      RunWithChangeOnRank1([&](TrainConfig& config) { config.data.paths = {path}; }),
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("data of --data is 4000 tokens in 1 file"),
                                                  HasSubstr("on rank 1"), Not(HasSubstr(folder_.str())))));
}

TEST_F(Agreement, AcceptsTheSameDataInAnotherFolder) {
  const std::string path = folder_.Write("other/text.txt", SomeText());
  EXPECT_OK(RunWithChangeOnRank1([&](TrainConfig& config) {
    config.data.paths = {path};
    config.output.dump_folder = "elsewhere";
  }));
}

}  // namespace
}  // namespace weft
