#include "src/train/plan/inputs.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "src/train/config/flag_error.h"
#include "src/train/config/special_tokens.h"
#include "src/train/files/json_text.h"
#include "src/train/files/model_folder.h"
#include "src/train/plan/parameter_sets.h"
#include "weft/core/status.h"
#include "weft/nn/linear.h"
#include "weft/nn/sparse/lightning_indexer.h"
#include "weft/train/checkpoint.h"
#include "weft/train/embedded_text.h"
#include "weft/train/hf_config.h"
#include "weft/train/model_presets.h"
#include "weft/train/peft_adapter.h"

namespace weft {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr int64_t kElementsPerRead = 1 << 20;

absl::StatusOr<Corpus> OpenCorpus(const TrainConfig& config) {
  const bool with_loss_mask = config.data.loss_mask;
  if (!config.data.paths.empty()) return Corpus::Open(config.data.paths, with_loss_mask);
  // An evaluation alone reads no training data, which could not be in the same format as --eval-data.
  if (config.optimizer.steps == 0) return Corpus::Open(config.eval.paths, with_loss_mask);
  if (with_loss_mask) return BadFlag("loss-mask", "true", "the built-in text has no mask: give --data");
  return Corpus::FromText("the built-in text", EmbeddedText());
}

absl::StatusOr<std::optional<Corpus>> OpenEvalCorpus(const EvalOptions& eval, const Corpus& training) {
  if (eval.paths.empty()) {
    return std::nullopt;
  }
  absl::StatusOr<Corpus> corpus = Corpus::Open(eval.paths, training.has_loss_mask());
  if (!corpus.ok()) {
    return Annotate(corpus.status(), "--eval-data");
  }
  const bool is_text = corpus->format() == TokenFormat::kBytes;
  if (is_text != (training.format() == TokenFormat::kBytes)) {
    return absl::DataLossError(absl::StrCat("--eval-data '", corpus->sources()[0].name, "' holds ",
                                            is_text ? "text" : "token ids", ", but the training data are ",
                                            is_text ? "token ids" : "text", ": give both in one format"));
  }
  return *std::move(corpus);
}

// Files of a model folder that hold a tokenizer.
constexpr const char* kTokenizers[] = {"tokenizer.json", "tokenizer.model", "vocab.json"};

// The tokens of text are its bytes, which mean nothing to a model that has a tokenizer.
absl::Status CheckTokenizer(const Corpus& corpus, const TrainConfig& config, const std::string& folder) {
  const std::string tokenizer = TokenizerOf(folder);
  if (corpus.format() != TokenFormat::kBytes || tokenizer.empty()) return absl::OkStatus();
  const bool evaluates_alone = config.data.paths.empty() && config.optimizer.steps == 0;
  const std::vector<std::string>& paths = evaluates_alone ? config.eval.paths : config.data.paths;
  return BadFlag(evaluates_alone ? "eval-data" : "data", paths.empty() ? "(none)" : paths.front(),
                 absl::StrCat(paths.empty() ? "the built-in data are" : "is",
                              " text, but the model of --hf-model has a tokenizer: make token ids with "
                              "tools/tokenize.py --tokenizer ",
                              tokenizer));
}

std::string ConfigPath(const std::string& folder) { return absl::StrCat(folder, "/", kConfigFile); }

// Fewest tensors per layer with which the model is built, as the model takes memory for all layers of
// config.json. A layer has nine; CheckWeights names a single missing one.
constexpr int64_t kMinTensorsPerLayer = 8;

absl::Status CheckLayers(const SafetensorsReader& weights, const LlamaConfig& model,
                         const std::string& path) {
  const auto tensors = static_cast<int64_t>(weights.entries().size());
  if (model.layers <= tensors / kMinTensorsPerLayer) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("'", path, "': num_hidden_layers is ", model.layers,
                                          ", but the weights of the folder have only ", tensors, " tensors"));
}

// True for a tensor of the folder that may be ignored: the head if it is tied to the embedding, and rotary
// frequencies, which older versions of transformers saved.
bool IsRedundant(const std::string& name, const LlamaConfig& config) {
  return (config.tie_word_embeddings && name == kHead) || absl::EndsWith(name, ".rotary_emb.inv_freq");
}

absl::Status CheckIndexerSize(const char* flag, int64_t value, int64_t saved, const std::string& folder) {
  if (value == saved) return absl::OkStatus();
  return BadFlag(flag, value,
                 absl::StrCat("the indexers of '", folder, "' have ", saved, ": give --", flag, " ", saved,
                              ", or another --hf-model"));
}

// Lifetime: `weights` must outlive the loader.
ShardLoader LoadFromSafetensors(const SafetensorsReader& weights) {
  return [&weights](const Parameter& parameter, int64_t start, int64_t count, float* out) {
    return weights.Read(parameter.name, start, absl::MakeSpan(out, static_cast<size_t>(count)));
  };
}

// Unset if the folder has neither indexers nor their description.
absl::StatusOr<std::optional<SafetensorsReader>> OpenIndexers(const std::string& folder,
                                                              const SparseAttentionConfig& sparse) {
  absl::StatusOr<SparseAttentionConfig> saved = ReadIndexerConfig(folder);
  absl::StatusOr<SafetensorsReader> weights = SafetensorsReader::Open(folder, kIndexerFiles);
  if (absl::IsNotFound(saved.status()) && absl::IsNotFound(weights.status())) return std::nullopt;
  WEFT_RETURN_IF_ERROR(saved.status());
  WEFT_RETURN_IF_ERROR(CheckIndexerSize("dsa-index-heads", sparse.index_heads, saved->index_heads, folder));
  WEFT_RETURN_IF_ERROR(CheckIndexerSize("dsa-index-dim", sparse.index_dim, saved->index_dim, folder));
  WEFT_RETURN_IF_ERROR(weights.status());
  return *std::move(weights);
}

constexpr const char* kOfAnotherModel =
    "which this architecture does not have: the folder holds another kind of model";
constexpr const char* kOfOtherAdapters =
    "which target_modules and this model do not have: the adapters are of another model";

// Checks that `weights` has exactly the parameters for which `belongs`. `other`: what it means if there are
// more.
template <typename Belongs>
absl::Status CheckTensors(const SafetensorsReader& weights, LlamaModel& model, const char* other,
                          Belongs belongs) {
  std::set<std::string> known;
  for (const std::shared_ptr<Parameter>& parameter : model.AllParameters()) {
    if (!belongs(*parameter)) continue;
    WEFT_RETURN_IF_ERROR(weights.Check(parameter->name, parameter->shape));
    known.insert(parameter->name);
  }
  for (const auto& [name, entry] : weights.entries()) {
    if (known.count(name) == 0 && !IsRedundant(name, model.config())) {
      return absl::DataLossError(
          absl::StrCat("'", entry.file, "' has the tensor '", Excerpt(name), "', ", other));
    }
  }
  return absl::OkStatus();
}

// Checks that the folders of the inputs have each parameter of `model` with its shape, and no other tensors.
// A tied head and saved rotary frequencies are ignored. Only weights that were opened are checked.
absl::Status CheckWeights(const ModelInputs& inputs, LlamaModel& model) {
  const auto is_llama = [](const Parameter& parameter) {
    return !IsIndexerParameter(parameter) && !IsLoraParameter(parameter);
  };
  if (inputs.weights) {
    WEFT_RETURN_IF_ERROR(CheckTensors(*inputs.weights, model, kOfAnotherModel, is_llama));
  }
  if (inputs.indexer_weights) {
    WEFT_RETURN_IF_ERROR(CheckTensors(*inputs.indexer_weights, model, kOfAnotherModel, IsIndexerParameter));
  }
  return inputs.adapter_weights
             ? CheckTensors(*inputs.adapter_weights, model, kOfOtherAdapters, IsLoraParameter)
             : absl::OkStatus();
}

// The adapters of the flags.
absl::Status OpenLora(const LoraConfig& lora, ModelInputs& inputs) {
  inputs.lora = lora.new_adapters();
  return lora.adapter.empty() ? absl::OkStatus() : OpenAdapter(lora.adapter, inputs);
}

// The configuration of a model folder.
absl::StatusOr<ModelInputs> ReadModelConfig(const std::string& folder) {
  ModelInputs inputs;
  absl::StatusOr<std::string> text = ReadHfConfigText(folder);
  if (absl::IsNotFound(text.status()) && ReadPeftAdapter(folder).ok()) {
    return BadFlag("hf-model", folder,
                   "holds adapters: name the folder of their model, and this one by --lora-adapter");
  }
  if (absl::IsNotFound(text.status())) {
    const absl::StatusOr<std::vector<std::string>> checkpoints = ListCheckpoints(folder);
    if (checkpoints.ok() && !checkpoints->empty()) {
      return BadFlag("hf-model", folder,
                     absl::StrCat("is a folder of checkpoints: name one of them, such as ", folder, "/",
                                  checkpoints->front()));
    }
  }
  WEFT_ASSIGN_OR_RETURN(inputs.hf_config, std::move(text));
  WEFT_ASSIGN_OR_RETURN(inputs.model, ParseHfConfig(inputs.hf_config, ConfigPath(folder)));
  return inputs;
}

absl::Status OpenFolderWeights(const std::string& folder, ModelInputs& inputs) {
  WEFT_ASSIGN_OR_RETURN(inputs.weights, SafetensorsReader::Open(folder));
  return CheckLayers(*inputs.weights, inputs.model, ConfigPath(folder));
}

bool HasFile(const std::string& folder, const char* name) {
  return access(absl::StrCat(folder, "/", name).c_str(), F_OK) == 0;
}

// As OpenFolderWeights, with the remedy of a new model for a folder that has a configuration alone.
absl::Status OpenWeightsToTrain(const std::string& folder, ModelInputs& inputs) {
  absl::Status opened = OpenFolderWeights(folder, inputs);
  if (!absl::IsNotFound(opened) || HasFile(folder, kWeightsFile) || HasFile(folder, kWeightsIndex))
    return opened;
  return absl::NotFoundError(absl::StrCat(
      opened.message(), " To train a new model of this configuration, give --hf-model ", ConfigPath(folder)));
}

}  // namespace

absl::Status OpenAdapter(const std::string& folder, ModelInputs& inputs) {
  WEFT_ASSIGN_OR_RETURN(PeftAdapter adapter, ReadPeftAdapter(folder));
  WEFT_ASSIGN_OR_RETURN(inputs.adapter_weights, SafetensorsReader::Open(folder, kAdapterFiles));
  inputs.lora = std::move(adapter.lora);
  inputs.adapter_config = std::move(adapter.text);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LlamaModel>> CreateModel(ModelInputs& inputs) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<LlamaModel> model, LlamaModel::Create(inputs.model));
  if (inputs.lora) {
    absl::StatusOr<LoraOptions> lora = AddLora(*model, *inputs.lora);
    if (!lora.ok()) {
      return Annotate(lora.status(), inputs.adapter_weights ? kAdapterConfig : "--lora-targets");
    }
    inputs.lora = *std::move(lora);
    inputs.adapter_elements = 0;
    for (const std::shared_ptr<Parameter>& parameter : model->AllParameters()) {
      if (IsLoraParameter(*parameter)) inputs.adapter_elements += parameter->elements();
    }
  }
  WEFT_RETURN_IF_ERROR(CheckWeights(inputs, *model));
  return model;
}

absl::StatusOr<ModelInputs> OpenModelFolder(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(ModelInputs inputs, ReadModelConfig(folder));
  WEFT_RETURN_IF_ERROR(OpenFolderWeights(folder, inputs));
  return inputs;
}

std::string TokenizerOf(const std::string& folder) {
  for (const char* name : kTokenizers) {
    if (HasFile(folder, name)) return absl::StrCat(folder, "/", name);
  }
  return "";
}

absl::StatusOr<TrainInputs> OpenModel(const TrainConfig& config) {
  WEFT_ASSIGN_OR_RETURN(Corpus corpus, OpenCorpus(config));
  WEFT_ASSIGN_OR_RETURN(std::optional<Corpus> eval_corpus, OpenEvalCorpus(config.eval, corpus));
  TrainInputs inputs{{}, std::move(corpus), std::move(eval_corpus)};
  if (config.model.hf_model.empty()) {
    inputs.model = MakeLlamaConfig(config.model, config.data.seq_len);
    inputs.model.sparse_attention = config.attention.sparse_config();
    WEFT_RETURN_IF_ERROR(OpenLora(config.lora, inputs));
    return inputs;
  }
  WEFT_ASSIGN_OR_RETURN(static_cast<ModelInputs&>(inputs), ReadModelConfig(config.model.hf_folder()));
  inputs.model.rope_sequence = config.data.seq_len;
  inputs.model.sparse_attention = config.attention.sparse_config();
  if (const absl::Status status = Validate(inputs.model); !status.ok()) {
    return BadFlag("attention", ToAbsl(Name(config.attention.kind)),
                   absl::StrCat("cannot be used: ", status.message()));
  }
  WEFT_RETURN_IF_ERROR(OpenLora(config.lora, inputs));
  return inputs;
}

absl::StatusOr<TrainInputs> OpenInputs(const TrainConfig& config) {
  WEFT_ASSIGN_OR_RETURN(TrainInputs inputs, OpenModel(config));
  if (config.model.hf_model.empty()) return inputs;
  const std::string folder = config.model.hf_folder();
  WEFT_RETURN_IF_ERROR(CheckTokenizer(inputs.corpus, config, folder));
  if (config.model.hf_weights()) {
    WEFT_RETURN_IF_ERROR(OpenWeightsToTrain(folder, inputs));
  } else {
    WEFT_ASSIGN_OR_RETURN(inputs.hf_config, WithTokensOfTokenizer(inputs.hf_config, folder));
  }
  if (inputs.weights && inputs.model.sparse_attention) {
    WEFT_ASSIGN_OR_RETURN(inputs.indexer_weights, OpenIndexers(folder, *inputs.model.sparse_attention));
  }
  return inputs;
}

absl::Status CheckTiedHead(const SafetensorsReader& weights, const LlamaConfig& config, int part, int parts) {
  const auto head = weights.entries().find(kHead);
  if (!config.tie_word_embeddings || head == weights.entries().end()) return absl::OkStatus();
  const Shape shape = {config.vocab_size, config.dim};
  WEFT_RETURN_IF_ERROR(weights.Check(kEmbedding, shape));
  WEFT_RETURN_IF_ERROR(weights.Check(kHead, shape));
  const int64_t rows_per_read = std::max<int64_t>(1, kElementsPerRead / config.dim);
  const int64_t end = config.vocab_size * (part + 1) / parts;
  std::vector<float> embedding;
  std::vector<float> tied;
  for (int64_t row = config.vocab_size * part / parts; row < end; row += rows_per_read) {
    const int64_t rows = std::min(rows_per_read, end - row);
    embedding.resize(static_cast<size_t>(rows * config.dim));
    tied.resize(embedding.size());
    WEFT_RETURN_IF_ERROR(weights.Read(kEmbedding, row * config.dim, absl::MakeSpan(embedding)));
    WEFT_RETURN_IF_ERROR(weights.Read(kHead, row * config.dim, absl::MakeSpan(tied)));
    if (std::memcmp(embedding.data(), tied.data(), embedding.size() * sizeof(float)) != 0) {
      return absl::DataLossError(
          absl::StrCat("'", head->second.file, "' has an ", kHead, " that differs from ", kEmbedding,
                       ", but config.json says tie_word_embeddings: set it to false, or remove the tensor"));
    }
  }
  return absl::OkStatus();
}

ShardLoader LoadInputs(const ModelInputs& inputs, uint64_t seed) {
  const auto load = [seed](const std::optional<SafetensorsReader>& weights) {
    return weights ? LoadFromSafetensors(*weights) : LoadInitialValues(seed);
  };
  return LoadBySet(load(inputs.weights), load(inputs.indexer_weights), load(inputs.adapter_weights));
}

}  // namespace weft
