// Inputs of a run: the data, and the configuration and weights of a model folder.
#pragma once

#include <optional>
#include <string>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/bootstrap.h"
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
};

struct TrainInputs : ModelInputs {
  Corpus corpus;
  std::optional<Corpus> eval_corpus;  // The data of --eval-data.
};

// Opens the model of a folder, with dense attention, but reads no weights. Errors: those of SafetensorsReader
// and ReadHfConfig; kDataLoss (too few tensors for the layers of config.json).
absl::StatusOr<ModelInputs> OpenModelFolder(const std::string& folder);

// The path of the tokenizer in a model folder; empty if there is none.
std::string TokenizerOf(const std::string& folder);

// Opens all inputs, but reads neither data nor weights. Errors: those of Corpus, SafetensorsReader and
// ReadHfConfig; kInvalidArgument (text for a model that has a tokenizer; indexers of other sizes than the
// flags give); kDataLoss (too few tensors for the layers of config.json).
absl::StatusOr<TrainInputs> OpenInputs(const TrainConfig& config);

// Checks that the folder has each parameter of `model` with its shape, and no other tensors. A tied head and
// saved rotary frequencies are ignored. The indexers are checked only if their weights were opened.
// REQUIRES: inputs.weights. Errors: kNotFound, kDataLoss (names the tensor).
absl::Status CheckWeights(const ModelInputs& inputs, LlamaModel& model);

// If the head is tied to the embedding and the folder has a head too, checks that they are equal in part
// `part` of `parts`. Otherwise the head of the folder would be lost. Errors: kDataLoss, or that of the read.
absl::Status CheckTiedHead(const SafetensorsReader& weights, const LlamaConfig& config, int part, int parts);

// Checks that all tokens of the data are below `vocab_size`. Each rank reads a part of the data. Collective:
// all ranks. Errors: kDataLoss (names file and position), and those of Corpus::Read.
absl::Status CheckData(Bootstrap& bootstrap, const Corpus& corpus, int64_t vocab_size,
                       absl::Duration timeout);

// A loader of the weights of a run that starts anew: those of --hf-model as far as it has them, and initial
// values for the others. Lifetime: `inputs` must outlive the loader.
ShardLoader LoadInputs(const ModelInputs& inputs, uint64_t seed);

}  // namespace weft
