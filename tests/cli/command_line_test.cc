#include "src/cli/command_line.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;

TrainConfig Parsed(Arguments flags) {
  flags.insert(flags.begin(), "train");
  const absl::StatusOr<Command> command = ParseCommandLine(flags);
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? std::get<TrainConfig>(*command) : TrainConfig{};
}

std::string ErrorOf(const Arguments& arguments) {
  const absl::StatusOr<Command> command = ParseCommandLine(arguments);
  EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(command.status().message());
}

std::string TextOf(const Arguments& arguments) {
  const absl::StatusOr<Command> command = ParseCommandLine(arguments);
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? std::get<PrintText>(*command).text : "";
}

TEST(CommandLine, SetsEveryFieldFromItsFlag) {
  const TrainConfig config = Parsed({"--layers=2",
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
      Parsed({"--attention", "dsa", "--dsa-topk", "64", "--dsa-index-heads", "2", "--dsa-index-dim", "16",
              "--dsa-warmup-steps", "5", "--dsa-loss-coef", "0.25"})
          .attention;
  EXPECT_EQ(attention.sparse_config(), (SparseAttentionConfig{64, 2, 16}));
  EXPECT_EQ(attention.indexer_training()->warmup_steps, 5);
  EXPECT_EQ(attention.indexer_training()->loss_coef, 0.25);
  EXPECT_THAT(ErrorOf({"train", "--dsa-topk", "64"}), HasSubstr("--dsa-topk 64: needs --attention dsa"));
  EXPECT_EQ(ErrorOf({"train", "--dsa-loss-coef", "much"}), "--dsa-loss-coef: 'much' is not a number");
}

TEST(CommandLine, SetsTheFieldsOfAdapters) {
  EXPECT_FALSE(Parsed({}).lora.enabled());
  const LoraOptions defaults = *Parsed({"--lora-rank", "4"}).lora.new_adapters();
  EXPECT_EQ(defaults.scaling(), 2);
  EXPECT_THAT(defaults.targets, ElementsAre("q_proj", "v_proj"));
  const LoraOptions options =
      *Parsed({"--lora-rank", "4", "--lora-alpha", "2", "--lora-targets", "up_proj, down_proj"})
           .lora.new_adapters();
  EXPECT_EQ(options.scaling(), 0.5);
  EXPECT_THAT(options.targets, ElementsAre("up_proj", "down_proj"));
  EXPECT_TRUE(Parsed({"--lora-adapter", "a"}).lora.enabled());
  EXPECT_THAT(ErrorOf({"train", "--lora-rank", "0"}), HasSubstr("--lora-rank 0: must be from 1"));
  EXPECT_THAT(ErrorOf({"train", "--lora-alpha", "2"}), HasSubstr("--lora-alpha 2: needs --lora-rank"));
  EXPECT_THAT(ErrorOf({"train", "--lora-targets", "q"}), HasSubstr("--lora-targets q: needs --lora-rank"));
  EXPECT_THAT(ErrorOf({"train", "--lora-rank", "2", "--lora-alpha", "-1"}),
              HasSubstr("--lora-alpha -1: must"));
  EXPECT_THAT(ErrorOf({"train", "--lora-rank", "2", "--lora-targets", "q,"}), HasSubstr("an empty name"));
  EXPECT_THAT(ErrorOf({"train", "--lora-rank", "2", "--lora-adapter", "a"}),
              HasSubstr("leave this flag out"));
  EXPECT_THAT(ErrorOf({"train", "--lora-rank", "2", "--export-merged", "true"}), HasSubstr("--export-hf"));
  EXPECT_THAT(ErrorOf({"train", "--export-hf", "e", "--export-merged", "true"}), HasSubstr("--lora-rank"));
  EXPECT_THAT(ErrorOf({"train", "--lora-rank", "2", "--attention", "dsa"}), HasSubstr("use dense"));
}

// The help text names them, and the fields of unset flags are empty.
TEST(CommandLine, HasTheDefaultsOfSparseAttentionThatItsHelpNames) {
  EXPECT_FALSE(Parsed({}).attention.sparse_config().has_value());
  const AttentionConfig attention = Parsed({"--attention", "dsa"}).attention;
  EXPECT_EQ(attention.sparse_config(), (SparseAttentionConfig{512, 4, 32}));
  EXPECT_EQ(attention.indexer_training()->warmup_steps, 0);
  EXPECT_EQ(attention.indexer_training()->loss_coef, 1);
  const std::string help = TextOf({"train", "--help"});
  for (const char* text : {"selects [512]", "indexer [4]", "number [32]", "attention [0]", "loss [1]"}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
}

TEST(CommandLine, KeepsDefaultsOfFlagsThatAreNotGiven) {
  const TrainConfig config = Parsed({});
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
  EXPECT_EQ(ErrorOf({"train", "--stpes", "3"}), "unknown flag --stpes; did you mean --steps?");
  EXPECT_EQ(ErrorOf({"train", "--lrr=3"}), "unknown flag --lrr; did you mean --lr?");
  EXPECT_EQ(ErrorOf({"train", "--data", "a", "--sead", "1"}), "unknown flag --sead; did you mean --seed?");
  EXPECT_THAT(ErrorOf({"train", "stray"}), HasSubstr("unexpected argument 'stray'"));
  EXPECT_THAT(ErrorOf({"train", "-x"}), HasSubstr("unexpected argument '-x'"));
}

TEST(CommandLine, SuggestsTheNearestValue) {
  EXPECT_EQ(ErrorOf({"train", "--lr-schedule", "cosin"}),
            "--lr-schedule: 'cosin' is not one of constant, linear, cosine; did you mean cosine?");
  EXPECT_EQ(ErrorOf({"train", "--model", "smal"}),
            "--model: 'smal' is not one of tiny, small, medium; did you mean small?");
  EXPECT_EQ(ErrorOf({"train", "--cp-scheme", "rings"}),
            "--cp-scheme: 'rings' is not one of auto, ulysses, gather, hybrid, ring; did you mean ring?");
  EXPECT_EQ(
      ErrorOf({"train", "--load-balance", "head-tial"}),
      "--load-balance: 'head-tial' is not one of none, head-tail, query-exchange; did you mean head-tail?");
  EXPECT_EQ(ErrorOf({"train", "--shuffle", "yes"}), "--shuffle: 'yes' is neither false nor true");
  EXPECT_EQ(ErrorOf({"train", "--param-dtype", "f64"}),
            "--param-dtype: 'f64' is not one of f32, bf16, f16; did you mean f32?");
}

TEST(CommandLine, NamesValuesThatAreNotNumbers) {
  EXPECT_EQ(ErrorOf({"train", "--steps", "abc"}), "--steps: 'abc' is not a whole number in range");
  EXPECT_EQ(ErrorOf({"train", "--steps", "1.5"}), "--steps: '1.5' is not a whole number in range");
  EXPECT_EQ(ErrorOf({"train", "--steps", "99999999999999999999"}),
            "--steps: '99999999999999999999' is not a whole number in range");
  EXPECT_EQ(ErrorOf({"train", "--seed", "-1"}), "--seed: '-1' is not a whole number in range");
  EXPECT_EQ(ErrorOf({"train", "--lr", "fast"}), "--lr: 'fast' is not a number");
}

TEST(CommandLine, NamesFlagsWithoutAValue) {
  EXPECT_THAT(ErrorOf({"train", "--steps"}), HasSubstr("--steps is given without a value"));
  EXPECT_THAT(ErrorOf({"train", "--metrics", "--steps", "3"}), HasSubstr("--metrics: '--steps' is a flag"));
}

TEST(CommandLine, TakesTheLastValueOfAFlagThatIsGivenTwice) {
  const TrainConfig config =
      Parsed({"--steps", "1", "--lr-schedule", "cosine", "--metrics", "a", "--shuffle", "false", "--steps=2",
              "--lr-schedule", "linear", "--metrics", "b", "--shuffle", "true"});
  EXPECT_EQ(config.optimizer.steps, 2);
  EXPECT_EQ(config.optimizer.lr_schedule, LrDecay::kLinear);
  EXPECT_EQ(config.output.metrics_file, "b");
  EXPECT_TRUE(config.data.shuffle);
}

TEST(CommandLine, JoinsThePathsOfAFlagThatIsGivenTwice) {
  EXPECT_THAT(Parsed({"--data", "a", "b", "--data", "c"}).data.paths, ElementsAre("a", "b", "c"));
}

TEST(CommandLine, ChecksEveryValueOfAFlagThatIsGivenTwice) {
  EXPECT_EQ(ErrorOf({"train", "--steps", "abc", "--steps", "2"}),
            "--steps: 'abc' is not a whole number in range");
}

TEST(CommandLine, ValidatesTheConfiguration) {
  EXPECT_THAT(ErrorOf({"train", "--model", "tiny", "--dim", "8"}),
              HasSubstr("--dim cannot be used with --model tiny"));
}

TEST(CommandLine, ReadsKeysOfAFileThatTheCommandLineOverrides) {
  const TempFolder folder;
  const std::string file = folder.Write("run.toml",
                                        "# A run.\n"
                                        "steps = 7\n"
                                        "lr = 1e-2  # high\n"
                                        "data = [\"x\", \"y z\"]\n"
                                        "shuffle = false\n"
                                        "lr-schedule = \"cosine\"\n");
  const TrainConfig config = Parsed({"--config", file, "--steps", "9"});
  EXPECT_EQ(config.optimizer.steps, 9);
  EXPECT_EQ(config.optimizer.lr, 1e-2);
  EXPECT_THAT(config.data.paths, ElementsAre("x", "y z"));
  EXPECT_FALSE(config.data.shuffle);
  EXPECT_EQ(config.optimizer.lr_schedule, LrDecay::kCosine);
}

TEST(CommandLine, NamesFileAndKeyOfABadConfigurationFile) {
  const TempFolder folder;
  const auto error = [&](const std::string& text) {
    return ErrorOf({"train", "--config", folder.Write("run.toml", text)});
  };
  EXPECT_THAT(error("stpes = 3\n"), HasSubstr("run.toml: unknown key 'stpes'; did you mean 'steps'?"));
  EXPECT_THAT(error("steps = \"a\"\n"), HasSubstr("run.toml: --steps: 'a' is not a whole number"));
  EXPECT_THAT(error("[train]\nsteps = 3\n"), HasSubstr("sections are not supported"));
  EXPECT_THAT(error("steps = 3\nsteps = 4\n"),
              HasSubstr("run.toml: key 'steps' is given in line 1 and in line 2: keep one of them"));
  EXPECT_THAT(error("steps = 3\nlr = 1.0\nsteps = 4\n"), HasSubstr("in line 1 and in line 3"));
  EXPECT_THAT(error("steps = [3, 4]\n"), HasSubstr("key 'steps' takes one value, not a list"));
  EXPECT_THAT(error("data = []\n"), HasSubstr("key 'data' has an empty list"));
  EXPECT_THAT(error("config = \"x\"\n"), HasSubstr("allowed on the command line only"));
  EXPECT_THAT(error("lr-schedule = \"cosin\"\n"), HasSubstr("did you mean cosine?"));
  EXPECT_THAT(ErrorOf({"train", "--config", folder / "none.toml"}), HasSubstr("does not exist"));
  EXPECT_THAT(ErrorOf({"train", "--config", folder.str()}), HasSubstr("is actually a directory"));
}

TEST(CommandLine, RefusesAListThatAFileGivesTwice) {
  const TempFolder folder;
  for (const char* text : {"data = \"a\"\ndata = \"b\"\n", "data = \"a\"\nsteps = 3\ndata = [\"b\"]\n"}) {
    EXPECT_THAT(ErrorOf({"train", "--config", folder.Write("run.toml", text)}),
                HasSubstr("key 'data' is given in line 1 and in line "))
        << text;
    EXPECT_THAT(ErrorOf({"train", "--config", folder.Write("run.toml", text)}),
                HasSubstr("write all its values in one list"))
        << text;
  }
}

TEST(CommandLine, SetsTheOptionsOfEachOptimizer) {
  const OptimizerOptions muon = Parsed({"--optimizer", "muon", "--momentum", "0.75", "--nesterov", "false",
                                        "--adamw-lr", "1e-3", "--muon-lr-scale", "match_rms_adamw"})
                                    .optimizer;
  EXPECT_EQ(muon.kind, OptimizerKind::kMuon);
  EXPECT_EQ(muon.momentum, 0.75);
  EXPECT_EQ(muon.nesterov, false);
  EXPECT_EQ(muon.adamw_lr, 1e-3);
  EXPECT_EQ(muon.muon_lr_scale, MuonLrScale::kMatchRmsAdamW);
  const OptimizerOptions sgd =
      Parsed({"--optimizer", "sgd", "--optimizer-in-backward", "true", "--clip-grad-norm", "0"}).optimizer;
  EXPECT_EQ(sgd.kind, OptimizerKind::kSgd);
  EXPECT_TRUE(sgd.in_backward);
}

TEST(CommandLine, PrintsHelpInGroupsAndTheVersion) {
  const std::string help = TextOf({"train", "--help"});
  for (const char* part :
       {"Model", "Data", "Optimizer", "Parallelism", "Output", "--shuffle BOOL", "[0.0003]"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
  EXPECT_LT(std::count(help.begin(), help.end(), '\n'), 112);
  EXPECT_THAT(TextOf({"--help"}), HasSubstr("Commands:"));
  EXPECT_EQ(TextOf({"--version"}), "weft 0.1.0\n");
}

LaunchCommand Launched(Arguments arguments) {
  arguments.insert(arguments.begin(), "launch");
  const absl::StatusOr<Command> command = ParseCommandLine(arguments);
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? std::get<LaunchCommand>(*command) : LaunchCommand{};
}

TEST(LaunchCommandLine, SetsEveryFieldFromItsFlag) {
  const LaunchCommand launch = Launched({"-n",
                                         "4",
                                         "--host",
                                         "a:2,b:2",
                                         "--oversubscribe",
                                         "--mca",
                                         "x",
                                         "1",
                                         "--mca",
                                         "y",
                                         "2",
                                         "--max-restarts",
                                         "7",
                                         "--restart-delay",
                                         "0",
                                         "--",
                                         "train",
                                         "--steps",
                                         "9",
                                         "--checkpoint-dir",
                                         "ck"});
  EXPECT_EQ(launch.options.ranks, 4);
  EXPECT_EQ(launch.options.hosts, "a:2,b:2");
  EXPECT_TRUE(launch.options.oversubscribe);
  EXPECT_THAT(launch.options.mca, ElementsAre(::testing::Pair("x", "1"), ::testing::Pair("y", "2")));
  EXPECT_EQ(launch.options.max_restarts, 7);
  EXPECT_EQ(launch.options.restart_delay_s, 0);
  EXPECT_THAT(launch.program, ElementsAre("train", "--steps", "9", "--checkpoint-dir", "ck"));
  EXPECT_EQ(launch.checkpoint.folder, "ck");
  EXPECT_EQ(Launched({"--hostfile", "f", "--max-restarts", "0", "--", "train"}).options.hostfile, "f");
}

TEST(LaunchCommandLine, HasDefaults) {
  const LaunchCommand launch = Launched({"--", "train", "--checkpoint-dir", "ck"});
  EXPECT_FALSE(launch.options.ranks);
  EXPECT_EQ(launch.options.max_restarts, 3);
  EXPECT_FALSE(launch.options.oversubscribe);
}

TEST(LaunchCommandLine, RefusesWithARemedy) {
  struct Row {
    Arguments arguments;
    const char* message;
  };
  const Row rows[] = {
      {{}, "-- is missing before the program: weft launch -n 4 -- train ..."},
      {{"-n", "2", "train"}, "unexpected argument 'train': see weft launch --help"},
      {{"-n", "2", "--"}, "the program after -- is missing, but only train can be launched"},
      {{"--", "python"}, "the program after -- is 'python', but only train can be launched"},
      {{"-n", "x", "--", "train"}, "'x' is not a whole number"},
      {{"-n", "--", "train"}, "is given without a value"},
      {{"-n", "0", "--", "train"}, "-n 0 must be positive"},
      {{"--max-restarts", "-1", "--", "train"}, "--max-restarts -1 must not be negative"},
      {{"--host", "a:0", "--", "train"}, "--host: 'a:0' is not a host with its slots"},
      {{"--hots", "a", "--", "train"}, "unknown flag --hots; did you mean --host?"},
      {{"--mca", "a", "--", "train"}, "--mca"},
      {{"--", "train", "--stpes", "2"}, "unknown flag --stpes; did you mean --steps?"},
      {{"--", "train"},
       "a restart goes on from a checkpoint: give train a --checkpoint-dir, or launch with "
       "--max-restarts 0"},
  };
  for (const Row& row : rows) {
    Arguments arguments = row.arguments;
    arguments.insert(arguments.begin(), "launch");
    EXPECT_THAT(ErrorOf(arguments), HasSubstr(row.message));
  }
}

TEST(LaunchCommandLine, PrintsHelp) {
  const std::string help = TextOf({"launch", "--help"});
  for (const char* part : {"Usage: weft launch [FLAGS] -- train", "Ranks", "-n", "--host LIST", "Restarts",
                           "--max-restarts N", "[3]"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
  EXPECT_THAT(TextOf({"launch", "--", "train", "--help"}), HasSubstr("--steps"));
  EXPECT_THAT(TextOf({"--help"}), HasSubstr("launch "));
}

TEST(HostDaemonCommandLine, NeedsAFolderAndACommand) {
  const absl::StatusOr<Command> command = ParseCommandLine({"host-daemon", "/d", "orted", "-mca", "--help"});
  ASSERT_TRUE(command.ok()) << command.status();
  const auto& daemon = std::get<HostDaemonOptions>(*command);
  EXPECT_EQ(daemon.folder, "/d");
  EXPECT_THAT(daemon.command, ElementsAre("orted", "-mca", "--help"));
  EXPECT_THAT(ErrorOf({"host-daemon", "/d"}), HasSubstr("started by weft launch only"));
}

TEST(CommandLine, SuggestsTheNearestCommand) {
  EXPECT_EQ(ErrorOf({"trian"}), "unknown command 'trian'; did you mean train?");
  EXPECT_THAT(ErrorOf({}), HasSubstr("no command was given"));
}

PlanCommand ParsedPlan(const Arguments& arguments) {
  const absl::StatusOr<Command> command = ParseCommandLine(arguments);
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? std::get<PlanCommand>(*command) : PlanCommand{};
}

TEST(CommandLine, PlansWithTheFlagsOfTrain) {
  const PlanCommand plan = ParsedPlan({"plan", "--ranks", "8", "--hosts=2", "--model", "small", "--data",
                                       "my text", "--json", "--link", "1gbit:9us", "--seq-len=512"});
  EXPECT_EQ(plan.options.ranks, 8);
  EXPECT_EQ(plan.options.hosts, 2);
  EXPECT_TRUE(plan.options.json);
  EXPECT_TRUE(plan.options.all_meshes);
  EXPECT_EQ(plan.config.data.seq_len, 512);
  EXPECT_EQ(plan.options.train_arguments, "--model small --data 'my text' --seq-len=512");
}

TEST(CommandLine, PlansOneMeshIfAFlagNamesIt) {
  const PlanCommand plan =
      ParsedPlan({"plan", "--ranks", "4", "--dp-shard", "2", "--dp-replicate=2", "--steps", "9"});
  EXPECT_FALSE(plan.options.all_meshes);
  EXPECT_EQ(plan.options.train_arguments, "--steps 9");
  EXPECT_THAT(ErrorOf({"plan", "--rank", "4"}), HasSubstr("did you mean --ranks?"));
  EXPECT_THAT(ErrorOf({"plan", "--seq-len", "0"}), HasSubstr("--seq-len"));
}

}  // namespace
}  // namespace weft
