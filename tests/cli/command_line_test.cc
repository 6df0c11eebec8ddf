#include "src/cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/parsed_arguments.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CommandLine, SetsEveryFieldFromItsFlag) {
  const TrainConfig config = ParsedConfig({"--layers=2",
                                           "--dim",
                                           "8",
                                           "--heads",
                                           "2",
                                           "--kv-heads",
                                           "1",
                                           "--ffn-dim",
                                           "5",
                                           "--vocab-size",
                                           "131",
                                           "--data",
                                           "a",
                                           "b",
                                           "--seq-len",
                                           "16",
                                           "--batch-size",
                                           "8",
                                           "--grad-accum",
                                           "2",
                                           "--shuffle",
                                           "false",
                                           "--seed",
                                           "9",
                                           "--eval-data",
                                           "c",
                                           "--eval-interval",
                                           "4",
                                           "--eval-sequences",
                                           "10",
                                           "--steps",
                                           "7",
                                           "--lr",
                                           "1e-2",
                                           "--beta1",
                                           "0.5",
                                           "--beta2",
                                           "0.6",
                                           "--eps",
                                           "1e-6",
                                           "--weight-decay",
                                           "0",
                                           "--decay",
                                           "matrices",
                                           "--warmup-steps",
                                           "3",
                                           "--lr-schedule",
                                           "cosine",
                                           "--min-lr-ratio",
                                           "0.25",
                                           "--clip-grad-norm",
                                           "0",
                                           "--dp-replicate",
                                           "-1",
                                           "--dp-shard",
                                           "2",
                                           "--cp",
                                           "4",
                                           "--cp-scheme",
                                           "hybrid",
                                           "--ulysses-degree",
                                           "2",
                                           "--ring-rotate",
                                           "all-gather",
                                           "--load-balance",
                                           "none",
                                           "--document-separator",
                                           "10",
                                           "--zero-copy",
                                           "false",
                                           "--node-shared",
                                           "off",
                                           "--reshard-after-forward",
                                           "false",
                                           "--shard-optimizer-over-replicas",
                                           "true",
                                           "--prefetch-depth",
                                           "2",
                                           "--wire-compression",
                                           "lossless",
                                           "--grad-sync",
                                           "each",
                                           "--activation-checkpoint",
                                           "full",
                                           "--param-dtype",
                                           "bf16",
                                           "--reduce-dtype",
                                           "f16",
                                           "--loss-scale",
                                           "dynamic",
                                           "--loss-scale-growth-interval",
                                           "100",
                                           "--metrics",
                                           "m",
                                           "--export-hf",
                                           "e"});
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_EQ(config.model.dim, 8);
  EXPECT_EQ(config.model.heads, 2);
  EXPECT_EQ(config.model.kv_heads, 1);
  EXPECT_EQ(config.model.ffn_dim, 5);
  EXPECT_EQ(config.model.vocab_size, 131);
  EXPECT_THAT(config.data.paths, ElementsAre("a", "b"));
  EXPECT_EQ(config.data.seq_len, 16);
  EXPECT_EQ(config.data.batch_size, 8);
  EXPECT_EQ(config.data.grad_accum, 2);
  EXPECT_FALSE(config.data.shuffle);
  EXPECT_EQ(config.seed, 9);
  EXPECT_THAT(config.eval.paths, ElementsAre("c"));
  EXPECT_EQ(config.eval.interval, 4);
  EXPECT_EQ(config.eval.sequences, 10);
  EXPECT_EQ(config.optimizer.steps, 7);
  EXPECT_EQ(config.optimizer.lr, 1e-2);
  EXPECT_EQ(config.optimizer.beta1, 0.5);
  EXPECT_EQ(config.optimizer.beta2, 0.6);
  EXPECT_EQ(config.optimizer.eps, 1e-6);
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.optimizer.decay, DecayScope::kMatrices);
  EXPECT_EQ(config.optimizer.warmup_steps, 3);
  EXPECT_EQ(config.optimizer.lr_schedule, LrDecay::kCosine);
  EXPECT_EQ(config.optimizer.min_lr_ratio, 0.25);
  EXPECT_EQ(config.optimizer.clip_grad_norm, 0);
  EXPECT_EQ(config.parallel.dp_replicate, -1);
  EXPECT_EQ(config.parallel.dp_shard, 2);
  EXPECT_EQ(config.parallel.context.size, 4);
  EXPECT_EQ(config.parallel.context.scheme, CpScheme::kHybrid);
  EXPECT_EQ(config.parallel.context.ulysses_degree, 2);
  EXPECT_EQ(config.parallel.context.ring_rotate, RingRotation::kAllGather);
  EXPECT_EQ(config.parallel.context.load_balance, LoadBalance::kNone);
  EXPECT_EQ(config.data.document_separator, 10);
  EXPECT_FALSE(config.parallel.zero_copy);
  EXPECT_EQ(config.parallel.node_shared, NodeShared::kOff);
  EXPECT_FALSE(config.parallel.reshard_after_forward);
  EXPECT_TRUE(config.parallel.shard_optimizer_over_replicas);
  EXPECT_EQ(config.parallel.prefetch_depth, 2);
  EXPECT_EQ(config.parallel.wire_compression, WireCompression::kLossless);
  EXPECT_EQ(config.parallel.grad_sync, GradientSync::kEach);
  EXPECT_EQ(config.parallel.activation_checkpoint, ActivationCheckpoint::kFull);
  EXPECT_EQ(config.parallel.param_dtype, DType::kBF16);
  EXPECT_EQ(config.parallel.reduce_dtype, DType::kF16);
  EXPECT_EQ(config.optimizer.loss_scale, "dynamic");
  EXPECT_EQ(config.optimizer.loss_scale_growth_interval, 100);
  EXPECT_EQ(config.output.metrics_file, "m");
  EXPECT_EQ(config.output.export_folder, "e");
}

TEST(CommandLine, SetsTheFieldsOfSparseAttention) {
  const AttentionConfig attention =
      ParsedConfig({"--attention", "dsa", "--dsa-topk", "64", "--dsa-index-heads", "2", "--dsa-index-dim",
                    "16", "--dsa-warmup-steps", "5", "--dsa-loss-coef", "0.25"})
          .attention;
  EXPECT_EQ(attention.sparse_config(), (SparseAttentionConfig{64, 2, 16}));
  EXPECT_EQ(attention.indexer_training()->warmup_steps, 5);
  EXPECT_EQ(attention.indexer_training()->loss_coef, 0.25);
  EXPECT_THAT(UsageErrorOf({"train", "--dsa-topk", "64"}), HasSubstr("--dsa-topk 64: needs --attention dsa"));
  EXPECT_EQ(UsageErrorOf({"train", "--dsa-loss-coef", "much"}), "--dsa-loss-coef: 'much' is not a number");
}

TEST(CommandLine, SetsTheFieldsOfAdapters) {
  EXPECT_FALSE(ParsedConfig({}).lora.enabled());
  const LoraOptions defaults = *ParsedConfig({"--lora-rank", "4"}).lora.new_adapters();
  EXPECT_EQ(defaults.scaling(), 2);
  EXPECT_THAT(defaults.targets, ElementsAre("q_proj", "v_proj"));
  const LoraOptions options =
      *ParsedConfig({"--lora-rank", "4", "--lora-alpha", "2", "--lora-targets", "up_proj, down_proj"})
           .lora.new_adapters();
  EXPECT_EQ(options.scaling(), 0.5);
  EXPECT_THAT(options.targets, ElementsAre("up_proj", "down_proj"));
  EXPECT_TRUE(ParsedConfig({"--lora-adapter", "a"}).lora.enabled());
  EXPECT_THAT(UsageErrorOf({"train", "--lora-rank", "0"}), HasSubstr("--lora-rank 0: must be from 1"));
  EXPECT_THAT(UsageErrorOf({"train", "--lora-alpha", "2"}), HasSubstr("--lora-alpha 2: needs --lora-rank"));
  EXPECT_THAT(UsageErrorOf({"train", "--lora-targets", "q"}),
              HasSubstr("--lora-targets q: needs --lora-rank"));
  EXPECT_THAT(UsageErrorOf({"train", "--lora-rank", "2", "--lora-alpha", "-1"}),
              HasSubstr("--lora-alpha -1: must"));
  EXPECT_THAT(UsageErrorOf({"train", "--lora-rank", "2", "--lora-targets", "q,"}),
              HasSubstr("an empty name"));
  EXPECT_THAT(UsageErrorOf({"train", "--lora-rank", "2", "--lora-adapter", "a"}),
              HasSubstr("leave this flag out"));
  EXPECT_THAT(UsageErrorOf({"train", "--lora-rank", "2", "--export-merged", "true"}),
              HasSubstr("--export-hf"));
  EXPECT_THAT(UsageErrorOf({"train", "--export-hf", "e", "--export-merged", "true"}),
              HasSubstr("--lora-rank"));
  EXPECT_THAT(UsageErrorOf({"train", "--lora-rank", "2", "--attention", "dsa"}), HasSubstr("use dense"));
}

TEST(CommandLine, KeepsDefaultsOfFlagsThatAreNotGiven) {
  const TrainConfig config = ParsedConfig({});
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.weight_decay, 0.1);
  EXPECT_EQ(config.parallel.dp_shard, -1);
  EXPECT_EQ(config.parallel.context.size, 1);
  EXPECT_EQ(config.parallel.context.scheme, CpScheme::kAuto);
  EXPECT_FALSE(config.parallel.context.ring_rotate.has_value());
  EXPECT_FALSE(config.parallel.context.load_balance.has_value());
  EXPECT_FALSE(config.data.document_separator.has_value());
  EXPECT_TRUE(config.data.shuffle);
  EXPECT_TRUE(config.model.preset.empty());
  EXPECT_FALSE(config.data.batch_size.has_value());
}

TEST(CommandLine, SuggestsTheNearestFlag) {
  EXPECT_EQ(UsageErrorOf({"train", "--stpes", "3"}), "unknown flag --stpes; did you mean --steps?");
  EXPECT_EQ(UsageErrorOf({"train", "--lrr=3"}), "unknown flag --lrr; did you mean --lr?");
  EXPECT_EQ(UsageErrorOf({"train", "--data", "a", "--sead", "1"}),
            "unknown flag --sead; did you mean --seed?");
  EXPECT_THAT(UsageErrorOf({"train", "stray"}), HasSubstr("unexpected argument 'stray'"));
  EXPECT_THAT(UsageErrorOf({"train", "-x"}), HasSubstr("unknown flag -x: see weft train --help"));
  EXPECT_EQ(UsageErrorOf({"train", "-steps", "3"}), "unknown flag -steps; did you mean --steps?");
  EXPECT_EQ(UsageErrorOf({"report", "--trac=x"}), "unknown flag --trac; did you mean --trace?");
  for (const char* command : {"trace", "diagnose", "checkpoint"}) {
    EXPECT_EQ(UsageErrorOf({command, "-x"}), absl::StrCat("unknown flag -x: see weft ", command, " --help"));
  }
}

TEST(CommandLine, TakesOneValueOfEachFlagOfAReport) {
  const auto error = [](Arguments arguments) {
    arguments.insert(arguments.begin(), {"report", "m.jsonl"});
    return UsageErrorOf(arguments);
  };
  EXPECT_EQ(error({"-o", "--trace", "t"}), "-o is given without a value: write ./--trace if that is a path");
  EXPECT_EQ(error({"--trace", "-o", "r"}), "--trace is given without a value: write ./-o if that is a path");
  EXPECT_EQ(error({"--output"}), "--output is given without a value");
  EXPECT_EQ(error({"-o", "r", "--trace="}), "--trace: the path is empty");
  EXPECT_EQ(error({"-o", "r", "--output=s"}), "--output is given twice: keep one of them");
  EXPECT_EQ(error({"-o", "r", "--trace", "a", "--trace", "b"}), "--trace is given twice: keep one of them");
  const auto report = ParseCommandLine({"report", "m.jsonl", "--output=-r", "--trace", "t"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(std::get<ReportOptions>(*report).output, "-r");
  EXPECT_EQ(std::get<ReportOptions>(*report).trace, "t");
}

TEST(CommandLine, SuggestsTheNearestValue) {
  EXPECT_EQ(UsageErrorOf({"train", "--lr-schedule", "cosin"}),
            "--lr-schedule: 'cosin' is not one of constant, linear, cosine; did you mean cosine?");
  EXPECT_EQ(UsageErrorOf({"train", "--model", "smal"}),
            "--model: 'smal' is not one of tiny, small, medium; did you mean small?");
  EXPECT_EQ(UsageErrorOf({"train", "--cp-scheme", "rings"}),
            "--cp-scheme: 'rings' is not one of auto, ulysses, gather, hybrid, ring; did you mean ring?");
  EXPECT_EQ(
      UsageErrorOf({"train", "--load-balance", "head-tial"}),
      "--load-balance: 'head-tial' is not one of none, head-tail, query-exchange; did you mean head-tail?");
  EXPECT_EQ(UsageErrorOf({"train", "--shuffle", "yes"}), "--shuffle: 'yes' is neither false nor true");
  EXPECT_EQ(UsageErrorOf({"train", "--param-dtype", "f64"}),
            "--param-dtype: 'f64' is not one of f32, bf16, f16; did you mean f32?");
}

TEST(CommandLine, NamesValuesThatAreNotNumbers) {
  EXPECT_EQ(UsageErrorOf({"train", "--steps", "abc"}), "--steps: 'abc' is not a whole number in range");
  EXPECT_EQ(UsageErrorOf({"train", "--steps", "1.5"}), "--steps: '1.5' is not a whole number in range");
  EXPECT_EQ(UsageErrorOf({"train", "--steps", "99999999999999999999"}),
            "--steps: '99999999999999999999' is not a whole number in range");
  EXPECT_EQ(UsageErrorOf({"train", "--seed", "-1"}), "--seed: '-1' is not a whole number in range");
  EXPECT_EQ(UsageErrorOf({"train", "--lr", "fast"}), "--lr: 'fast' is not a number");
}

TEST(CommandLine, ReadsNumbersAsDecimals) {
  const TrainConfig config =
      ParsedConfig({"--steps", "010", "--seed", "08", "--batch-size", "012", "--lr", "010.5"});
  EXPECT_EQ(config.optimizer.steps, 10);
  EXPECT_EQ(config.seed, 8);
  EXPECT_EQ(config.data.batch_size, 12);
  EXPECT_EQ(config.optimizer.lr, 10.5);
  EXPECT_EQ(ParsedConfig({"--lr", "4.91e-6"}).optimizer.lr, 4.91e-6);
  EXPECT_EQ(UsageErrorOf({"train", "--steps", "0x10"}), "--steps: '0x10' is not a whole number in range");
  EXPECT_EQ(ParsedConfig({"--lr", "0e-3"}).optimizer.lr, 0);
  for (const char* text : {"1e", "inf", "nan", "1e999", "1e-400"}) {
    EXPECT_EQ(UsageErrorOf({"train", "--lr", text}), absl::StrCat("--lr: '", text, "' is not a number"));
    EXPECT_EQ(UsageErrorOf({"plan", "--memory", text}),
              absl::StrCat("--memory: '", text, "' is not a number"));
  }
}

TEST(CommandLine, NamesFlagsWithoutAValue) {
  EXPECT_THAT(UsageErrorOf({"train", "--steps"}), HasSubstr("--steps is given without a value"));
  EXPECT_THAT(UsageErrorOf({"train", "--metrics", "--steps", "3"}),
              HasSubstr("--metrics: '--steps' is a flag: the value is missing"));
  EXPECT_EQ(UsageErrorOf({"train", "--loss-scale", ""}), "--loss-scale: the value is empty");
}

TEST(CommandLine, TakesTheLastValueOfAFlagThatIsGivenTwice) {
  const TrainConfig config =
      ParsedConfig({"--steps", "1", "--lr-schedule", "cosine", "--metrics", "a", "--shuffle", "false",
                    "--steps=2", "--lr-schedule", "linear", "--metrics", "b", "--shuffle", "true"});
  EXPECT_EQ(config.optimizer.steps, 2);
  EXPECT_EQ(config.optimizer.lr_schedule, LrDecay::kLinear);
  EXPECT_EQ(config.output.metrics_file, "b");
  EXPECT_TRUE(config.data.shuffle);
}

TEST(CommandLine, JoinsThePathsOfAFlagThatIsGivenTwice) {
  EXPECT_THAT(ParsedConfig({"--data", "a", "b", "--data", "c"}).data.paths, ElementsAre("a", "b", "c"));
}

TEST(CommandLine, ChecksEveryValueOfAFlagThatIsGivenTwice) {
  EXPECT_EQ(UsageErrorOf({"train", "--steps", "abc", "--steps", "2"}),
            "--steps: 'abc' is not a whole number in range");
}

TEST(CommandLine, ValidatesTheConfiguration) {
  EXPECT_THAT(UsageErrorOf({"train", "--model", "tiny", "--dim", "8"}),
              HasSubstr("--dim cannot be used with --model tiny"));
}

TEST(CommandLine, SetsTheOptionsOfEachOptimizer) {
  const OptimizerOptions muon =
      ParsedConfig({"--optimizer", "muon", "--momentum", "0.75", "--nesterov", "false", "--adamw-lr", "1e-3",
                    "--muon-lr-scale", "match_rms_adamw"})
          .optimizer;
  EXPECT_EQ(muon.kind, OptimizerKind::kMuon);
  EXPECT_EQ(muon.momentum, 0.75);
  EXPECT_EQ(muon.nesterov, false);
  EXPECT_EQ(muon.adamw_lr, 1e-3);
  EXPECT_EQ(muon.muon_lr_scale, MuonLrScale::kMatchRmsAdamW);
  const OptimizerOptions sgd =
      ParsedConfig({"--optimizer", "sgd", "--optimizer-in-backward", "true", "--clip-grad-norm", "0"})
          .optimizer;
  EXPECT_EQ(sgd.kind, OptimizerKind::kSgd);
  EXPECT_TRUE(sgd.in_backward);
}

TEST(CommandLine, PrintsTheVersion) { EXPECT_EQ(PrintedTextOf({"--version"}), "weft 0.1.0\n"); }

TEST(CommandLine, SuggestsTheNearestCommand) {
  EXPECT_EQ(UsageErrorOf({"trian"}), "unknown command 'trian'; did you mean train?");
  EXPECT_EQ(UsageErrorOf({"foo"}), "unknown command 'foo': see weft --help");
  EXPECT_THAT(UsageErrorOf({}), HasSubstr("no command was given"));
}

TEST(CommandLine, GeneratesWithItsFlags) {
  const absl::StatusOr<Command> command = ParseCommandLine(
      {"generate", "--hf-model", "m", "--lora-adapter", "a", "--prompt-tokens-file", "-", "--max-new-tokens",
       "5", "--temperature", "0.5", "--top-k", "6", "--top-p", "0.25", "--seed", "7", "--print-tokens"});
  ASSERT_TRUE(command.ok()) << command.status();
  const auto& config = std::get<GenerateConfig>(*command);
  EXPECT_EQ(config.hf_folder, "m");
  EXPECT_EQ(config.lora_adapter, "a");
  EXPECT_EQ(config.prompt_tokens_file, "-");
  EXPECT_EQ(config.max_new_tokens, 5);
  EXPECT_EQ(config.sampling.temperature, 0.5);
  EXPECT_EQ(config.sampling.top_k, 6);
  EXPECT_EQ(config.sampling.top_p, 0.25);
  EXPECT_EQ(config.sampling.seed, 7);
  EXPECT_TRUE(config.print_tokens);
  EXPECT_THAT(UsageErrorOf({"generate", "--hf-model", "m", "--prompt-tokens-file", "f", "--prompt", "a"}),
              HasSubstr("several of --prompt, --prompt-tokens and --prompt-tokens-file are given"));
}

PlanCommand ParsedPlan(const Arguments& arguments) {
  const absl::StatusOr<Command> command = ParseCommandLine(arguments);
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? std::get<PlanCommand>(*command) : PlanCommand{};
}

TEST(CommandLine, PlansWithTheFlagsOfTrain) {
  const PlanCommand plan =
      ParsedPlan({"plan",      "--ranks",      "8",      "--hosts=2",    "--model", "small",   "--data",
                  "my text",   "--json",       "--link", "1gbit:9us",    "--cores", "3",       "--memory",
                  "7.5",       "--flops",      "80gf",   "--numa-nodes", "2",       "--costs", "c.json",
                  "--measure", "--numa-speed", "5.5",    "--seq-len=512"});
  EXPECT_EQ(plan.options.ranks, 8);
  EXPECT_EQ(plan.options.hosts, 2);
  EXPECT_TRUE(plan.options.json && plan.options.measure);
  EXPECT_EQ(plan.options.link, "1gbit:9us");
  EXPECT_EQ(plan.options.cores, 3);
  EXPECT_EQ(plan.options.memory_gib, 7.5);
  EXPECT_EQ(plan.options.flops, "80gf");
  EXPECT_EQ(plan.options.numa_nodes, 2);
  EXPECT_EQ(plan.options.numa_gb_s, 5.5);
  EXPECT_EQ(plan.options.costs_file, "c.json");
  EXPECT_TRUE(plan.options.all_meshes);
  EXPECT_EQ(plan.config.data.seq_len, 512);
  EXPECT_EQ(plan.options.train_arguments, "--model small --data 'my text' --seq-len=512");
}

TEST(CommandLine, PlansOneMeshIfAFlagNamesIt) {
  const PlanCommand plan =
      ParsedPlan({"plan", "--ranks", "4", "--dp-shard", "2", "--dp-replicate=2", "--steps", "9"});
  EXPECT_FALSE(plan.options.all_meshes);
  EXPECT_EQ(plan.options.train_arguments, "--steps 9");
  EXPECT_THAT(UsageErrorOf({"plan", "--rank", "4"}), HasSubstr("did you mean --ranks?"));
  EXPECT_THAT(UsageErrorOf({"plan", "--seq-len", "0"}), HasSubstr("--seq-len"));
}

}  // namespace
}  // namespace weft
