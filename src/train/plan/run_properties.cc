#include "src/train/plan/run_properties.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// The shortest decimal text that reads back as `value`.
std::string Text(double value) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}
std::string Text(int64_t value) { return absl::StrCat(value); }
std::string Text(bool value) { return value ? "true" : "false"; }
std::string Text(std::string_view value) { return std::string(value); }
template <typename T>
std::string Text(const std::optional<T>& value) {
  if (!value) return kNotGiven;
  if constexpr (std::is_enum_v<T>) {
    return std::string(Name(*value));
  } else {
    return Text(*value);
  }
}

void AddFlags(const TrainConfig& config, std::vector<RunProperty>& properties) {
  const DataOptions& data = config.data;
  const OptimizerOptions& optimizer = config.optimizer;
  const ParallelOptions& parallel = config.parallel;
  const ContextOptions& context = parallel.context;
  constexpr bool kFixed = true;
  // The options that are in force: a flag may state its default.
  const bool sgd = optimizer.kind == OptimizerKind::kSgd, muon = optimizer.kind == OptimizerKind::kMuon;
  std::optional<double> momentum = std::nullopt, adamw_lr = std::nullopt;
  std::optional<bool> nesterov = std::nullopt;
  std::optional<MuonLrScale> lr_scale = std::nullopt;
  if (sgd || muon) {
    momentum = sgd ? optimizer.sgd().momentum : optimizer.muon().momentum;
    nesterov = sgd ? optimizer.sgd().nesterov : optimizer.muon().nesterov;
  }
  if (muon) {
    adamw_lr = optimizer.adamw().lr;
    lr_scale = optimizer.muon().lr_scale;
  }
  const std::string if_steps_change =
      optimizer.lr_schedule == LrDecay::kConstant
          ? ""
          : absl::StrCat("the learning rates of --lr-schedule ", ToAbsl(Name(optimizer.lr_schedule)),
                         " follow the new one from here on");
  const RunProperty flags[] = {
      {"--seq-len", Text(data.seq_len), kFixed},
      {"--batch-size", Text(data.batch_size), kFixed},
      {"--grad-accum", Text(data.grad_accum)},
      {"--document-separator", Text(data.document_separator), kFixed},
      {"--loss-mask", Text(data.loss_mask), kFixed},
      {"--shuffle", Text(data.shuffle), kFixed},
      {"--seed", absl::StrCat(config.seed), kFixed},
      {"--eval-interval", Text(config.eval.interval)},
      {"--eval-sequences", Text(config.eval.sequences)},
      {"--optimizer", Text(Name(optimizer.kind)), kFixed, std::string(Name(OptimizerKind::kAdamW))},
      {"--momentum", Text(momentum), kFixed},
      {"--nesterov", Text(nesterov), kFixed},
      {"--adamw-lr", Text(adamw_lr), kFixed},
      {"--muon-lr-scale", Text(lr_scale), kFixed},
      {"--optimizer-in-backward", Text(optimizer.in_backward)},
      {"--steps", Text(optimizer.steps), !kFixed, kNotGiven, if_steps_change},
      {"--lr", Text(optimizer.lr), kFixed},
      {"--warmup-steps", Text(optimizer.warmup_steps), kFixed},
      {"--lr-schedule", Text(Name(optimizer.lr_schedule)), kFixed},
      {"--min-lr-ratio", Text(optimizer.min_lr_ratio), kFixed},
      {"--weight-decay", Text(optimizer.weight_decay), kFixed},
      {"--decay", Text(Name(optimizer.decay)), kFixed},
      {"--clip-grad-norm", Text(optimizer.clip_grad_norm), kFixed},
      {"--beta1", Text(optimizer.beta1), kFixed},
      {"--beta2", Text(optimizer.beta2), kFixed},
      {"--eps", Text(optimizer.eps), kFixed},
      {"--max-skipped-steps", Text(optimizer.max_skipped_steps)},
      {"--loss-scale", optimizer.loss_scale.empty() ? kNotGiven : optimizer.loss_scale},
      {"--loss-scale-growth-interval", Text(optimizer.loss_scale_growth_interval)},
      {"--dp-replicate", Text(parallel.dp_replicate)},
      {"--dp-shard", Text(parallel.dp_shard)},
      {"--zero-copy", Text(parallel.zero_copy)},
      {"--node-shared", Text(Name(parallel.node_shared))},
      {"--share-domain", Text(Name(parallel.share_domain))},
      {"--reshard-after-forward", Text(parallel.reshard_after_forward)},
      {"--shard-optimizer-over-replicas", Text(parallel.shard_optimizer_over_replicas)},
      {"--check-replicas", Text(parallel.check_replicas)},
      {"--prefetch-depth", Text(parallel.prefetch_depth)},
      {"--wire-compression", Text(parallel.wire_compression)},
      {"--grad-sync", Text(Name(parallel.grad_sync))},
      {"--activation-checkpoint", Text(Name(parallel.activation_checkpoint))},
      {"--param-dtype", Text(Name(parallel.param_dtype))},
      {"--reduce-dtype", Text(Name(parallel.reduce_dtype))},
      {"--cp", Text(context.size)},
      {"--cp-scheme", Text(Name(context.scheme))},
      {"--ulysses-degree", Text(context.ulysses_degree)},
      {"--ring-rotate", Text(context.ring_rotate)},
      {"--load-balance", Text(context.load_balance)},
      {"--checkpoint-dir", config.checkpoint.folder.empty() ? kNotGiven : "given"},
      {"--checkpoint-interval", Text(config.checkpoint.interval)},
      {"--keep-checkpoints", Text(config.checkpoint.keep)},
      {"--checkpoint-async", Text(config.checkpoint.async)},
      {"--resume", config.checkpoint.resume.empty() || config.checkpoint.resume == "auto"
                       ? Text(config.checkpoint.resume)
                       : "a path"},
      {"--metrics", config.output.metrics_file.empty() ? kNotGiven : "given"},
      {"--tensorboard", config.output.tensorboard_folder.empty() ? kNotGiven : "given"},
      {"--trace", config.output.trace_file.empty() ? kNotGiven : "given"},
      {"--trace-steps", config.output.trace_steps.empty() ? kNotGiven : config.output.trace_steps},
      {"--export-hf", config.output.export_folder.empty() ? kNotGiven : "given"},
      {"--export-dtype", Text(config.output.export_dtype)},
      {"--export-merged", Text(config.output.export_merged)},
  };
  properties.insert(properties.end(), std::begin(flags), std::end(flags));
}

// Flags of sparse attention, with their defaults. Those of dense attention count as not given: checkpoints
// from before these flags have none of them.
void AddAttentionFlags(const AttentionConfig& attention, std::vector<RunProperty>& properties) {
  const SparseAttentionConfig sizes = attention.sparse_config().value_or(SparseAttentionConfig());
  const IndexerTraining training = attention.indexer_training().value_or(IndexerTraining());
  const auto value = [&](const auto& flag) { return attention.is_sparse() ? Text(flag) : kNotGiven; };
  constexpr bool kFixed = true;
  const RunProperty flags[] = {
      {"--attention", value(Name(attention.kind)), kFixed},
      {"--dsa-topk", value(sizes.top_k), kFixed},
      {"--dsa-index-heads", value(sizes.index_heads), kFixed},
      {"--dsa-index-dim", value(sizes.index_dim), kFixed},
      {"--dsa-warmup-steps", value(training.warmup_steps), kFixed},
      {"--dsa-loss-coef", value(training.loss_coef), kFixed},
  };
  properties.insert(properties.end(), std::begin(flags), std::end(flags));
}

// Adapters, by their flags. Without adapters all count as not given, and so does no dropout, as in
// checkpoints from before these flags.
void AddLoraFlags(const std::optional<LoraOptions>& lora, std::vector<RunProperty>& properties) {
  constexpr bool kFixed = true;
  const RunProperty flags[] = {
      {"--lora-rank", lora ? Text(lora->rank) : kNotGiven, kFixed},
      {"--lora-alpha", lora ? Text(lora->alpha) : kNotGiven, kFixed},
      {"--lora-targets", lora ? absl::StrJoin(lora->targets, ",") : kNotGiven, kFixed},
      {"--lora-dropout", lora && lora->dropout > 0 ? Text(lora->dropout) : kNotGiven, kFixed},
  };
  properties.insert(properties.end(), std::begin(flags), std::end(flags));
}

std::string FloatList(const std::vector<float>& values) {
  return absl::StrJoin(values, " ", [](std::string* out, float value) { out->append(Text(value)); });
}

std::string ScalingText(const Llama3RopeScaling& rope) {
  return absl::StrCat(Text(rope.factor), " ", Text(rope.low_freq_factor), " ", Text(rope.high_freq_factor),
                      " ", rope.original_max_positions);
}
std::string ScalingText(const LinearRopeScaling& rope) { return absl::StrCat("linear ", Text(rope.factor)); }
std::string ScalingText(const DynamicRopeScaling& rope) {
  return absl::StrCat("dynamic ", Text(rope.factor));
}
std::string ScalingText(const YarnRopeScaling& rope) {
  return absl::StrCat("yarn ", Text(rope.factor), " ", Text(rope.attention_factor), " ", Text(rope.beta_fast),
                      " ", Text(rope.beta_slow), " ", rope.truncate ? "truncated " : "",
                      rope.original_max_positions);
}
std::string ScalingText(const LongRopeScaling& rope) {
  return absl::StrCat("longrope ", FloatList(rope.short_factors), " / ", FloatList(rope.long_factors), " ",
                      Text(rope.attention_factor), " ", rope.original_max_positions);
}

// The traits that differ from those of a Llama, each with a comma before it.
std::string TraitsText(const DecoderTraits& traits) {
  std::string text;
  if (traits.qkv_bias) text += ", query, key and value biases";
  if (traits.output_bias) text += ", output bias";
  if (traits.qk_norm) text += ", query and key norms";
  if (traits.window) {
    absl::StrAppend(&text, ", window ", *traits.window, " from layer ", traits.first_window_layer);
  }
  if (traits.activation != GateActivation::kSilu)
    absl::StrAppend(&text, ", ", ToAbsl(Name(traits.activation)));
  if (traits.embedding_scale != 1.0F)
    absl::StrAppend(&text, ", embeddings times ", Text(traits.embedding_scale));
  if (traits.norm_offset != 0.0F) absl::StrAppend(&text, ", norms plus ", Text(traits.norm_offset));
  return text;
}

// The model's sizes and constants, which come from config.json with --hf-model.
RunProperty ModelProperty(const ModelInputs& inputs) {
  const LlamaConfig& model = inputs.model;
  const std::string scaling =
      model.rope_scaling ? std::visit([](const auto& rope) { return ScalingText(rope); }, *model.rope_scaling)
                         : "none";
  return {
      inputs.hf_config.empty() ? "--model" : "config.json of --hf-model",
      absl::StrCat(model.layers, " layers, dim ", model.dim, ", ", model.heads, " heads of ", model.head_dim,
                   ", ", model.kv_heads, " kv heads, ffn ", model.ffn_dim, ", vocabulary ", model.vocab_size,
                   ", positions ", model.max_positions, ", rms_norm_eps ", Text(double{model.norm_eps}),
                   ", rope_theta ", Text(model.rope_theta), ", rope scaling ", scaling, ", initial stddev ",
                   Text(double{model.init_stddev}), model.tie_word_embeddings ? ", tied embeddings" : "",
                   TraitsText(model.traits))};
}

// The names of the corpus's files, relative to their lowest common folder.
std::vector<std::string> RelativeNames(const Corpus& corpus) {
  namespace fs = std::filesystem;
  std::optional<fs::path> common;
  for (const Corpus::Source& source : corpus.sources()) {
    const fs::path folder = fs::path(source.name).lexically_normal().parent_path();
    if (!common) common = folder;
    while (common->has_relative_path() && folder.lexically_relative(*common).native().starts_with("..")) {
      *common = common->parent_path();
    }
  }
  std::vector<std::string> names;
  for (const Corpus::Source& source : corpus.sources()) {
    names.push_back(fs::path(source.name).lexically_normal().lexically_relative(*common));
  }
  return names;
}

// Hash of evenly spaced samples of the tokens and of their mask, the first and the last ones among them.
absl::StatusOr<uint64_t> SampleHash(const Corpus& corpus, int64_t vocab_size) {
  constexpr int64_t kSamples = 64;
  constexpr int64_t kTokensOfSample = 1024;
  const int64_t length = std::min(corpus.tokens(), kTokensOfSample);
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  std::vector<uint8_t> mask(tokens.size());
  uint64_t hash = 0;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    const int64_t first = (corpus.tokens() - length) / (kSamples - 1) * sample;
    const int64_t begin = sample + 1 == kSamples ? corpus.tokens() - length : first;
    WEFT_RETURN_IF_ERROR(corpus.Read(begin, vocab_size, absl::MakeSpan(tokens)));
    hash = Hash64(tokens.data(), tokens.size() * sizeof(int32_t), hash);
    if (!corpus.has_loss_mask()) continue;
    WEFT_RETURN_IF_ERROR(corpus.ReadLossMask(begin, absl::MakeSpan(mask)));
    hash = Hash64(mask.data(), mask.size(), hash);
  }
  return hash;
}

absl::StatusOr<RunProperty> CorpusProperty(const char* flag, const Corpus& corpus, int64_t vocab_size) {
  WEFT_ASSIGN_OR_RETURN(const uint64_t sample, SampleHash(corpus, vocab_size));
  uint64_t files = 0;
  const std::vector<std::string> names = RelativeNames(corpus);
  for (size_t i = 0; i < names.size(); ++i) {
    files = Hash64(absl::StrCat(names[i], "\n", corpus.sources()[i].tokens), files);
  }
  return RunProperty{
      absl::StrCat("data of ", flag),
      absl::StrCat(corpus.tokens(), " tokens in ", names.size(), names.size() == 1 ? " file" : " files",
                   " (names and sizes ", HashText(files), ", content ", HashText(sample), ")")};
}

// Hash of the names, shapes and dtypes of all tensors, and of the first elements of each that can be read.
absl::StatusOr<RunProperty> WeightsProperty(const char* property, const SafetensorsReader& weights) {
  constexpr int64_t kElementsOfSample = 256;
  uint64_t hash = 0;
  for (const auto& [name, entry] : weights.entries()) {
    hash = Hash64(absl::StrCat(name, " ", entry.dtype, " ", absl::StrJoin(entry.shape, ",")), hash);
    if (!weights.Check(name, entry.shape).ok()) continue;  // Ignored tensors may have any dtype.
    int64_t elements = 1;
    for (const int64_t size : entry.shape) elements *= size;
    std::vector<float> sample(static_cast<size_t>(std::min(elements, kElementsOfSample)));
    WEFT_RETURN_IF_ERROR(weights.Read(name, 0, absl::MakeSpan(sample)));
    hash = Hash64(sample.data(), sample.size() * sizeof(float), hash);
  }
  return RunProperty{property, absl::StrCat(weights.entries().size(), " tensors (hash ", HashText(hash), ")"),
                     /*fixed=*/true};
}

}  // namespace

absl::StatusOr<std::vector<RunProperty>> PropertiesOf(const ModelInputs& inputs) {
  std::vector<RunProperty> properties = {{"the version of weft", WEFT_VERSION}};
  properties.push_back(ModelProperty(inputs));
  properties.back().fixed = true;
  constexpr const char* kWeights = "weights of --hf-model";
  if (inputs.weights) {
    WEFT_ASSIGN_OR_RETURN(RunProperty weights, WeightsProperty(kWeights, *inputs.weights));
    properties.push_back(std::move(weights));
  } else if (inputs.lora) {  // A checkpoint of adapters does not have the weights of their model.
    properties.push_back({kWeights, kNotGiven, /*fixed=*/true});
  }
  if (inputs.indexer_weights) {
    WEFT_ASSIGN_OR_RETURN(RunProperty weights,
                          WeightsProperty("indexers of --hf-model", *inputs.indexer_weights));
    properties.push_back(std::move(weights));
  }
  AddLoraFlags(inputs.lora, properties);
  if (inputs.adapter_weights) {
    WEFT_ASSIGN_OR_RETURN(RunProperty weights,
                          WeightsProperty("adapters of --lora-adapter", *inputs.adapter_weights));
    properties.push_back(std::move(weights));
  }
  return properties;
}

absl::StatusOr<std::vector<RunProperty>> PropertiesOf(const TrainConfig& config, const TrainInputs& inputs) {
  WEFT_ASSIGN_OR_RETURN(std::vector<RunProperty> properties,
                        PropertiesOf(static_cast<const ModelInputs&>(inputs)));
  AddFlags(config, properties);
  AddAttentionFlags(config.attention, properties);
  const int64_t vocab_size = inputs.model.vocab_size;
  WEFT_ASSIGN_OR_RETURN(RunProperty data, CorpusProperty("--data", inputs.corpus, vocab_size));
  data.fixed = true;
  properties.push_back(std::move(data));
  if (inputs.eval_corpus) {
    WEFT_ASSIGN_OR_RETURN(RunProperty eval, CorpusProperty("--eval-data", *inputs.eval_corpus, vocab_size));
    properties.push_back(std::move(eval));
  }
  return properties;
}

}  // namespace weft
