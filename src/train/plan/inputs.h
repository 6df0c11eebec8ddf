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

struct TrainInputs {
  Corpus corpus;
  std::optional<Corpus> eval_corpus;  // The data of --eval-data.
  LlamaConfig model;
  std::optional<SafetensorsReader> weights;  // The weights of --hf-model.
  std::string hf_config;                     // The text of config.json of --hf-model.
};

// Opens all inputs, but reads neither data nor weights. Errors: those of Corpus, SafetensorsReader and
// ReadHfConfig; kInvalidArgument (text for a model that has a tokenizer); kDataLoss (too few tensors for
// the layers of config.json).
absl::StatusOr<TrainInputs> OpenInputs(const TrainConfig& config);

// Checks that the folder has each parameter of `model` with its shape, and no other tensors. A tied head and
// saved rotary frequencies are ignored. Errors: kNotFound, kDataLoss (names the tensor).
absl::Status CheckWeights(const SafetensorsReader& weights, LlamaModel& model);

// If the head is tied to the embedding and the folder has a head too, checks that they are equal in part
// `part` of `parts`. Otherwise the head of the folder would be lost. Errors: kDataLoss, or that of the read.
absl::Status CheckTiedHead(const SafetensorsReader& weights, const LlamaConfig& config, int part, int parts);

// Checks that all tokens of the data are below `vocab_size`. Each rank reads a part of the data. Collective:
// all ranks. Errors: kDataLoss (names file and position), and those of Corpus::Read.
absl::Status CheckData(Bootstrap& bootstrap, const Corpus& corpus, int64_t vocab_size,
                       absl::Duration timeout);

// A loader that reads the weights of a folder. Lifetime: `weights` must outlive the loader.
ShardLoader LoadFromSafetensors(const SafetensorsReader& weights);

}  // namespace weft
