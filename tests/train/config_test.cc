#include "weft/train/config.h"

#include <cmath>
#include <functional>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/train/model_presets.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ErrorWith(const std::function<void(TrainConfig&)>& change) {
  TrainConfig config;
  change(config);
  const absl::Status status = Validate(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

void GiveSizes(TrainConfig& c, int64_t dim, int64_t heads) {
  c.model.layers = 2;
  c.model.dim = dim;
  c.model.heads = heads;
}

TEST(TrainConfig, IsValidByDefault) { EXPECT_TRUE(Validate(TrainConfig{}).ok()); }

TEST(TrainConfig, AllowsOnlyOneSourceOfTheModel) {
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.model.hf_model = "d", c.model.preset = "tiny"; }),
              HasSubstr("exclude each other"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.model.hf_model = "d", c.model.dim = 8; }),
              HasSubstr("--dim cannot be used with --hf-model"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.model.hf_model = "d", c.model.vocab_size = 8; }),
              HasSubstr("--vocab-size cannot be used with --hf-model"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.model.preset = "tiny", c.model.ffn_dim = 8; }),
              HasSubstr("--ffn-dim cannot be used with --model tiny"));
  TrainConfig preset_with_vocabulary;
  preset_with_vocabulary.model.preset = "tiny";
  preset_with_vocabulary.model.vocab_size = 32000;
  EXPECT_TRUE(Validate(preset_with_vocabulary).ok());
}

TEST(TrainConfig, NamesSizesThatDoNotFit) {
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.model.dim = 8; }),
              HasSubstr("needs --layers, --dim and --heads"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { GiveSizes(c, 10, 4); }),
              HasSubstr("--heads 4: must divide --dim 10"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { GiveSizes(c, 12, 4); }), HasSubstr("heads of 3 elements"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { GiveSizes(c, 16, 4), c.model.kv_heads = 3; }),
              HasSubstr("--kv-heads 3: must divide --heads 4"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { GiveSizes(c, 16, 4), c.model.layers = 0; }),
              HasSubstr("--layers 0: must be at least 1"));
}

TEST(TrainConfig, NamesOptionsThatTheOptimizerDoesNotHave) {
  const auto error = [](OptimizerKind kind, auto change) {
    return ErrorWith([&](TrainConfig& c) {
      c.optimizer.kind = kind;
      change(c);
    });
  };
  constexpr auto kAdamW = OptimizerKind::kAdamW;
  constexpr auto kSgd = OptimizerKind::kSgd;
  constexpr auto kMuon = OptimizerKind::kMuon;
  EXPECT_THAT(error(kAdamW, [](TrainConfig& c) { c.optimizer.momentum = 0.5; }),
              HasSubstr("--momentum 0.5: needs --optimizer sgd or muon"));
  EXPECT_THAT(error(kAdamW, [](TrainConfig& c) { c.optimizer.nesterov = false; }),
              HasSubstr("--nesterov false: needs --optimizer sgd or muon"));
  EXPECT_THAT(error(kSgd, [](TrainConfig& c) { c.optimizer.nesterov = true; }),
              HasSubstr("--nesterov true: needs --momentum above 0"));
  EXPECT_THAT(error(kSgd, [](TrainConfig& c) { c.optimizer.beta2 = 0.5; }),
              HasSubstr("--beta2 0.5: is an option of AdamW"));
  EXPECT_THAT(error(kSgd, [](TrainConfig& c) { c.optimizer.adamw_lr = 0.5; }),
              HasSubstr("--adamw-lr 0.5: needs --optimizer muon"));
  EXPECT_THAT(error(kSgd, [](TrainConfig& c) { c.optimizer.muon_lr_scale = MuonLrScale::kOriginal; }),
              HasSubstr("--muon-lr-scale original: needs --optimizer muon"));
  EXPECT_THAT(error(kMuon, [](TrainConfig& c) { c.optimizer.momentum = 1; }), HasSubstr("--momentum 1"));
  EXPECT_THAT(error(kMuon, [](TrainConfig& c) { c.parallel.shard_optimizer_over_replicas = true; }),
              HasSubstr("--optimizer muon needs them whole"));
  EXPECT_THAT(error(kMuon, [](TrainConfig& c) { c.lora.rank = 2; }), HasSubstr("--optimizer muon: "));
}

TEST(TrainConfig, NamesWhatUpdatesInBackwardCannotDo) {
  const auto error = [](auto change) {
    return ErrorWith([&](TrainConfig& c) {
      c.optimizer.in_backward = true;
      c.optimizer.clip_grad_norm = 0;
      change(c);
    });
  };
  EXPECT_THAT(error([](TrainConfig& c) { c.optimizer.clip_grad_norm = 0.5; }),
              HasSubstr("--optimizer-in-backward true: updates weights before the norm of all gradients is "
                        "known, but --clip-grad-norm is 0.5: give --clip-grad-norm 0, or leave "
                        "--optimizer-in-backward out"));
  EXPECT_THAT(error([](TrainConfig& c) { c.optimizer.kind = OptimizerKind::kMuon; }),
              HasSubstr("--optimizer muon exchanges matrices"));
  EXPECT_THAT(error([](TrainConfig& c) { c.optimizer.max_skipped_steps = 1; }),
              HasSubstr("leave --max-skipped-steps out"));
  EXPECT_THAT(error([](TrainConfig& c) { c.attention.kind = AttentionKind::kDsa; }),
              HasSubstr("is for --attention dense"));
}

TEST(TrainConfig, NamesValuesOutOfRange) {
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.optimizer.steps = -1; }), HasSubstr("--steps -1"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.optimizer.steps = 0; }), HasSubstr("--eval-data"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.optimizer.lr = -1; }), HasSubstr("--lr -1"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.optimizer.lr = std::nan(""); }), HasSubstr("--lr nan"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.optimizer.beta1 = 1; }), HasSubstr("--beta1 1"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.optimizer.beta2 = 1.5; }), HasSubstr("--beta2 1.5"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.optimizer.min_lr_ratio = 2; }), HasSubstr("--min-lr-ratio 2"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.optimizer.min_lr_ratio = 0.5; }),
              HasSubstr("--min-lr-ratio 0.5: needs --lr-schedule linear or cosine"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.checkpoint.keep = 2; }),
              HasSubstr("--keep-checkpoints 2: needs --checkpoint-dir"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.optimizer.clip_grad_norm = -1; }),
              HasSubstr("--clip-grad-norm -1"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.data.seq_len = 0; }), HasSubstr("--seq-len 0"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.data.batch_size = 0; }), HasSubstr("--batch-size 0"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.data.grad_accum = 0; }), HasSubstr("--grad-accum 0"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.eval.interval = -1; }), HasSubstr("--eval-interval -1"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.eval.sequences = 0; }), HasSubstr("--eval-sequences 0"));
}

constexpr int64_t kHuge = int64_t{1} << 62;

TEST(TrainConfig, NamesSizesThatNoRunHas) {
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.data.batch_size = kHuge; }),
              HasSubstr("--batch-size 4611686018427387904: must be at most 2147483648"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.data.seq_len = kHuge; }), HasSubstr("--seq-len"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.data.grad_accum = kHuge; }), HasSubstr("--grad-accum"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.model.vocab_size = kHuge; }), HasSubstr("--vocab-size"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { GiveSizes(c, 16, 4), c.model.ffn_dim = kHuge; }),
              HasSubstr("--ffn-dim"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { GiveSizes(c, kHuge, 4); }), HasSubstr("--dim"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { GiveSizes(c, 16, 4), c.model.layers = kHuge; }),
              HasSubstr("--layers 4611686018427387904: must be at most 65536"));
}

TEST(TrainConfig, RefusesAWarmUpThatIsLongerThanTheRun) {
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.optimizer.warmup_steps = 500, c.optimizer.steps = 2; }),
              HasSubstr("--warmup-steps 500: is more than --steps 2"));
  TrainConfig whole;
  whole.optimizer.warmup_steps = whole.optimizer.steps = 5;
  EXPECT_TRUE(Validate(whole).ok());
}

TEST(TrainConfig, NamesParallelOptionsOutOfRange) {
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.parallel.dp_replicate = 0; }), HasSubstr("--dp-replicate 0"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.parallel.dp_shard = -2; }), HasSubstr("--dp-shard -2"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.parallel.dp_replicate = -1; }), HasSubstr("only one of them"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.parallel.prefetch_depth = 3; }),
              HasSubstr("--prefetch-depth 3"));
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.parallel.param_dtype = DType::kF64; }),
              HasSubstr("--param-dtype f64: must be f32, bf16 or f16"));
}

TEST(TrainConfig, NeedsAnEpsThatIsNotZeroInFloat) {
  for (const double eps : {0.0, -1e-8, 1e-320, 1e-60, 1e60, std::nan("")}) {
    EXPECT_THAT(ErrorWith([&](TrainConfig& c) { c.optimizer.eps = eps; }),
                HasSubstr("must be a positive number in the range of float"));
  }
}

TEST(TrainConfig, NamesAnAdapterTargetThatIsGivenTwice) {
  EXPECT_THAT(ErrorWith([](TrainConfig& c) {
                c.lora.rank = 2;
                c.lora.targets = "q_proj,v_proj,q_proj";
              }),
              HasSubstr("has q_proj twice: write each name once"));
}

TEST(TrainConfig, NamesWhatALossScaleCannotBe) {
  const auto error = [](auto change) {
    return ErrorWith([&](TrainConfig& c) {
      c.parallel.param_dtype = DType::kF16;
      change(c);
    });
  };
  for (const char* scale : {"auto", "0", "-2", "inf", "nan", "1e39"}) {
    EXPECT_THAT(error([&](TrainConfig& c) { c.optimizer.loss_scale = scale; }),
                HasSubstr(absl::StrCat("--loss-scale ", scale, ": must be dynamic, or a positive number")));
  }
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.optimizer.loss_scale = "dynamic"; }),
              HasSubstr("--loss-scale dynamic: is for gradients in f16: give --param-dtype f16"));
  EXPECT_THAT(error([](TrainConfig& c) { c.optimizer.loss_scale_growth_interval = 0; }),
              HasSubstr("--loss-scale-growth-interval 0: must be at least 1"));
  EXPECT_THAT(error([](TrainConfig& c) {
                c.optimizer.loss_scale = "8";
                c.optimizer.loss_scale_growth_interval = 5;
              }),
              HasSubstr("--loss-scale-growth-interval 5: is for a dynamic loss scale"));
  EXPECT_THAT(error([](TrainConfig& c) {
                c.optimizer.in_backward = true;
                c.optimizer.clip_grad_norm = 0;
              }),
              HasSubstr("so it cannot skip a step, as --loss-scale dynamic does (the default in f16): give "
                        "--loss-scale N, or leave --optimizer-in-backward out"));
}

std::string ContextError(int64_t size, const std::function<void(ContextOptions&)>& change) {
  return ErrorWith([&](TrainConfig& c) { c.parallel.context.size = size, change(c.parallel.context); });
}

TEST(TrainConfig, NamesUlyssesDegreesThatDoNotFitRanksOrScheme) {
  const auto error = [](int64_t size, CpScheme scheme, int64_t degree) {
    return ContextError(size, [&](ContextOptions& c) { c.scheme = scheme, c.ulysses_degree = degree; });
  };
  EXPECT_THAT(error(4, CpScheme::kAuto, 3),
              HasSubstr("--ulysses-degree 3: must divide --cp 4: use one of 1, 2, 4"));
  EXPECT_THAT(error(4, CpScheme::kAuto, 0), HasSubstr("--ulysses-degree 0"));
  EXPECT_THAT(error(4, CpScheme::kUlysses, 2), HasSubstr("over all 4 ranks of --cp: leave the degree out"));
  EXPECT_THAT(error(4, CpScheme::kRing, 2), HasSubstr("--cp-scheme ring does not split heads over ranks"));
  EXPECT_THAT(error(4, CpScheme::kGather, 4),
              HasSubstr("--cp-scheme gather does not split heads over ranks"));
  EXPECT_THAT(error(4, CpScheme::kHybrid, 1), HasSubstr("use --cp-scheme gather or ring"));
  EXPECT_THAT(error(4, CpScheme::kHybrid, 4), HasSubstr("use --cp-scheme ulysses"));
}

TEST(TrainConfig, NamesContextOptionsThatContradictEachOther) {
  EXPECT_THAT(ContextError(0, [](ContextOptions&) {}), HasSubstr("--cp 0: must be from 1 to 1048576"));
  EXPECT_THAT(ContextError(9'000'000'000'000'000'000,
                           [](ContextOptions& c) { c.scheme = CpScheme::kHybrid, c.ulysses_degree = 7; }),
              HasSubstr("--cp 9000000000000000000: must be from 1 to 1048576"));
  EXPECT_THAT(ContextError(1 << 20, [](ContextOptions& c) { c.ulysses_degree = 3; }),
              HasSubstr("use one of 1, 2, 4,"));
  EXPECT_THAT(ContextError(3, [](ContextOptions& c) { c.scheme = CpScheme::kHybrid; }),
              HasSubstr("--cp-scheme hybrid: --cp 3 has no divisor"));
  for (const CpScheme scheme : {CpScheme::kAuto, CpScheme::kUlysses, CpScheme::kGather}) {
    EXPECT_THAT(
        ContextError(2, [&](ContextOptions& c) { c.scheme = scheme, c.ring_rotate = RingRotation::kShift; }),
        HasSubstr("--ring-rotate shift: --cp-scheme " + std::string(Name(scheme)) + " has no ring"));
  }
  const auto head_tail = [](ContextOptions& c) { c.load_balance = LoadBalance::kHeadTail; };
  EXPECT_THAT(ContextError(2, [&](ContextOptions& c) { c.scheme = CpScheme::kUlysses, head_tail(c); }),
              HasSubstr("--load-balance head-tail: Ulysses is balanced"));
  EXPECT_THAT(ContextError(2, [&](ContextOptions& c) { c.ulysses_degree = 2, head_tail(c); }),
              HasSubstr("--load-balance head-tail: Ulysses is balanced"));
  for (const CpScheme scheme : {CpScheme::kAuto, CpScheme::kUlysses, CpScheme::kRing, CpScheme::kHybrid}) {
    EXPECT_THAT(
        ContextError(
            4, [&](ContextOptions& c) { c.scheme = scheme, c.load_balance = LoadBalance::kQueryExchange; }),
        HasSubstr("--load-balance query-exchange: needs --cp-scheme gather, not " +
                  std::string(Name(scheme))));
  }
  EXPECT_THAT(ErrorWith([](TrainConfig& c) { c.data.document_separator = -1; }),
              HasSubstr("--document-separator -1"));
}

TEST(TrainConfig, NamesContextOptionsWithoutContextParallelism) {
  EXPECT_THAT(ContextError(1, [](ContextOptions& c) { c.scheme = CpScheme::kRing; }),
              HasSubstr("--cp-scheme ring: needs --cp"));
  EXPECT_THAT(ContextError(1, [](ContextOptions& c) { c.ulysses_degree = 1; }),
              HasSubstr("--ulysses-degree 1: needs --cp"));
  EXPECT_THAT(ContextError(1, [](ContextOptions& c) { c.ring_rotate = RingRotation::kShift; }),
              HasSubstr("--ring-rotate shift: needs --cp"));
  EXPECT_THAT(ContextError(1, [](ContextOptions& c) { c.load_balance = LoadBalance::kNone; }),
              HasSubstr("--load-balance none: needs --cp"));
}

TEST(TrainConfig, AllowsEveryContextOptionWithItsScheme) {
  TrainConfig config;
  ContextOptions& context = config.parallel.context;
  for (const int64_t size : {2, 4, 6}) {
    for (const CpScheme scheme :
         {CpScheme::kAuto, CpScheme::kUlysses, CpScheme::kGather, CpScheme::kRing, CpScheme::kHybrid}) {
      if (scheme == CpScheme::kHybrid && size == 2) continue;
      context = {};
      context.size = size;
      context.scheme = scheme;
      EXPECT_TRUE(Validate(config).ok());
      if (scheme == CpScheme::kGather) {
        context.load_balance = LoadBalance::kQueryExchange;
        EXPECT_TRUE(Validate(config).ok());
      }
      if (scheme != CpScheme::kUlysses) context.load_balance = LoadBalance::kHeadTail;
      if (scheme == CpScheme::kRing || scheme == CpScheme::kHybrid) {
        context.ring_rotate = RingRotation::kAllGather;
      }
      EXPECT_TRUE(Validate(config).ok());
    }
  }
}

std::string AttentionError(const std::function<void(AttentionConfig&)>& change,
                           AttentionKind kind = AttentionKind::kDsa) {
  return ErrorWith([&](TrainConfig& c) { c.attention.kind = kind, change(c.attention); });
}

TEST(TrainConfig, RefusesFlagsOfSparseAttentionWithoutIt) {
  const std::pair<const char*, std::function<void(AttentionConfig&)>> flags[] = {
      {"--dsa-topk 8", [](AttentionConfig& a) { a.top_k = 8; }},
      {"--dsa-index-heads 8", [](AttentionConfig& a) { a.index_heads = 8; }},
      {"--dsa-index-dim 8", [](AttentionConfig& a) { a.index_dim = 8; }},
      {"--dsa-warmup-steps 0", [](AttentionConfig& a) { a.warmup_steps = 0; }},
      {"--dsa-loss-coef 0.5", [](AttentionConfig& a) { a.loss_coef = 0.5; }},
  };
  for (const auto& [flag, change] : flags) {
    EXPECT_THAT(AttentionError(change, AttentionKind::kDense),
                HasSubstr(std::string(flag) + ": needs --attention dsa"));
    TrainConfig config;
    config.attention.kind = AttentionKind::kDsa;
    change(config.attention);
    EXPECT_TRUE(Validate(config).ok()) << flag;
  }
}

TEST(TrainConfig, NamesValuesOfSparseAttentionOutOfRange) {
  EXPECT_THAT(AttentionError([](AttentionConfig& a) { a.top_k = 0; }), HasSubstr("--dsa-topk 0"));
  EXPECT_THAT(AttentionError([](AttentionConfig& a) { a.top_k = kHuge; }), HasSubstr("--dsa-topk"));
  EXPECT_THAT(AttentionError([](AttentionConfig& a) { a.index_heads = 0; }),
              HasSubstr("--dsa-index-heads 0"));
  EXPECT_THAT(AttentionError([](AttentionConfig& a) { a.index_dim = 7; }),
              HasSubstr("--dsa-index-dim 7: must be even"));
  EXPECT_THAT(AttentionError([](AttentionConfig& a) { a.warmup_steps = -1; }),
              HasSubstr("--dsa-warmup-steps -1"));
  for (const double coef : {-1.0, 1e39, std::nan("")}) {
    EXPECT_THAT(AttentionError([&](AttentionConfig& a) { a.loss_coef = coef; }),
                HasSubstr("--dsa-loss-coef"));
  }
}

TEST(TrainConfig, AllowsOnlyGathersWithSparseAttention) {
  TrainConfig config;
  config.attention.kind = AttentionKind::kDsa;
  for (const CpScheme scheme : {CpScheme::kAuto, CpScheme::kGather}) {
    config.parallel.context = {.size = 4, .scheme = scheme};
    EXPECT_TRUE(Validate(config).ok());
  }
  for (const CpScheme scheme : {CpScheme::kUlysses, CpScheme::kHybrid, CpScheme::kRing}) {
    config.parallel.context = {.size = 4, .scheme = scheme};
    EXPECT_THAT(
        std::string(Validate(config).message()),
        AllOf(HasSubstr("--cp-scheme " + std::string(Name(scheme))), HasSubstr("use --cp-scheme gather")));
  }
  config.parallel.context = {.size = 4, .ulysses_degree = 2};
  EXPECT_THAT(std::string(Validate(config).message()), HasSubstr("--ulysses-degree 2"));
  config.parallel.context = {
      .size = 4, .scheme = CpScheme::kGather, .load_balance = LoadBalance::kQueryExchange};
  EXPECT_THAT(std::string(Validate(config).message()),
              HasSubstr("--load-balance query-exchange: is for dense attention only: use head-tail or none"));
}

TEST(ModelPresets, HaveTheParameterCountsOfTheirTable) {
  const auto count = [](const char* name) {
    ModelOptions options;
    options.preset = name;
    return MakeLlamaConfig(options, 1).ParameterCount();
  };
  EXPECT_THAT(PresetNames(), ::testing::ElementsAre("tiny", "small", "medium"));
  EXPECT_NEAR(static_cast<double>(count("tiny")), 0.9e6, 0.05e6);
  EXPECT_NEAR(static_cast<double>(count("small")), 24e6, 0.5e6);
  EXPECT_NEAR(static_cast<double>(count("medium")), 136e6, 0.5e6);
}

TEST(ModelPresets, AreTinyByDefault) {
  EXPECT_EQ(MakeLlamaConfig({}, 1).dim, 128);
  EXPECT_EQ(MakeLlamaConfig({}, 1).vocab_size, 256);
}

TEST(ModelPresets, FillInSizesThatAreNotGiven) {
  ModelOptions options;
  options.layers = 2;
  options.dim = 60;
  options.heads = 5;
  const LlamaConfig config = MakeLlamaConfig(options, 1);
  EXPECT_EQ(config.kv_heads, 5);
  EXPECT_EQ(config.head_dim, 12);
  EXPECT_EQ(config.ffn_dim, 192);  // 160, rounded up to a multiple of 64.
  EXPECT_FALSE(config.tie_word_embeddings);
}

TEST(ModelPresets, HaveEnoughPositionsForTheSequence) {
  EXPECT_EQ(MakeLlamaConfig({}, 256).max_positions, 2048);
  EXPECT_EQ(MakeLlamaConfig({}, 4096).max_positions, 4096);
}

}  // namespace
}  // namespace weft
