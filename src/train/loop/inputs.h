// What a run reads: the data, and the model's configuration and weights where they come from a folder.
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
  std::optional<Corpus> eval_corpus;  // Of --eval-data.
  LlamaConfig model;
  std::optional<SafetensorsReader> weights;  // Of --hf-model.
  std::string hf_config;                     // The text of its config.json.
};

// Opens everything, and reads no data or weights yet. Errors: those of Corpus, SafetensorsReader and
// ReadHfConfig.
absl::StatusOr<TrainInputs> OpenInputs(const TrainConfig& config);

// Whether the weights are those of `model`: every parameter with its shape, and nothing that the model has no
// place for. Errors: kNotFound, kDataLoss (names the tensor).
absl::Status CheckWeights(const SafetensorsReader& weights, LlamaModel& model);

// Checks this rank's part of the data against the vocabulary, and that all ranks see the same data.
// Collective: all ranks. Errors: kDataLoss (names file and position, or the ranks whose data differ).
absl::Status CheckData(Bootstrap& bootstrap, const Corpus& corpus, int64_t vocab_size,
                       absl::Duration timeout);

// Reads the weights of a folder. `weights` must outlive the loader.
ShardLoader LoadFromSafetensors(const SafetensorsReader& weights);

}  // namespace weft
