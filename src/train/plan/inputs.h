// Inputs of a run: the data, and the configuration and weights of a model folder.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <absl/status/statusor.h>

#include "weft/nn/llama.h"
#include "weft/sharding/shard_view.h"
#include "weft/train/config.h"
#include "weft/train/corpus.h"
#include "weft/train/safetensors.h"

namespace weft {

struct ModelInputs {
  LlamaConfig model;
  std::optional<SafetensorsReader> weights;  // The weights of --hf-model; unset for a new model.
  // The indexers' weights of --hf-model; unset for dense attention, and if the folder has none.
  std::optional<SafetensorsReader> indexer_weights;
  // The text of config.json of --hf-model. For a new model, with the tokens of the folder's tokenizer.
  std::string hf_config;
  std::optional<LoraOptions> lora;  // Unset: the model has no adapters.
  // The adapters of --lora-adapter and the text of their adapter_config.json; unset and empty for new ones.
  std::optional<SafetensorsReader> adapter_weights;
  std::string adapter_config;
  int64_t adapter_elements = 0;  // Of all adapters. CreateModel sets it.
};

struct TrainInputs : ModelInputs {
  Corpus corpus;
  std::optional<Corpus> eval_corpus;  // The data of --eval-data.
};

// Opens the model of a folder, with dense attention, but reads no weights. Errors: those of SafetensorsReader
// and ReadHfConfig; kDataLoss (too few tensors for the layers of config.json); kInvalidArgument (a folder of
// adapters).
absl::StatusOr<ModelInputs> OpenModelFolder(const std::string& folder);

// Opens the adapters of a PEFT folder, but reads no weights. Errors: those of SafetensorsReader and
// ReadPeftAdapter.
absl::Status OpenAdapter(const std::string& folder, ModelInputs& inputs);

// Makes the model with its adapters. Checks that the folders have each parameter with its shape, and no other
// tensors; a tied head and saved rotary frequencies are ignored.
// Errors: those of LlamaModel::Create and AddLora; kNotFound, kDataLoss (names the tensor).
absl::StatusOr<std::unique_ptr<LlamaModel>> CreateModel(ModelInputs& inputs);

// The path of the tokenizer in a model folder; empty if there is none.
std::string TokenizerOf(const std::string& folder);

// Opens all inputs, but reads neither data nor weights. Errors: those of Corpus, SafetensorsReader and
// ReadHfConfig; kInvalidArgument (text for a model that has a tokenizer; indexers of other sizes than the
// flags give); kDataLoss (too few tensors for the layers of config.json).
absl::StatusOr<TrainInputs> OpenInputs(const TrainConfig& config);

// The inputs of a forecast: the data if they are given, and the configuration of the model. Its weights need
// not exist. Errors: as OpenInputs.
absl::StatusOr<TrainInputs> OpenModel(const TrainConfig& config);

// If the head is tied to the embedding and the folder has a head too, checks that they are equal in part
// `part` of `parts`. Otherwise the head of the folder would be lost. Errors: kDataLoss, or that of the read.
absl::Status CheckTiedHead(const SafetensorsReader& weights, const LlamaConfig& config, int part, int parts);

// A loader of the weights of a run that starts anew: those of --hf-model and --lora-adapter as far as they
// have them, and initial values for the others. Lifetime: `inputs` must outlive the loader.
ShardLoader LoadInputs(const ModelInputs& inputs, uint64_t seed);

}  // namespace weft
