// Writes the trained model as a Hugging Face folder: model.safetensors in fp32, config.json, and the
// tokenizer and generation files of the folder that it came from.
#pragma once

#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/time/time.h>

#include "weft/mesh/bootstrap.h"
#include "weft/nn/llama.h"
#include "weft/sharding/shard_view.h"

namespace weft {

struct HfExport {
  std::string folder;         // Made if it is not there. On a file system that all ranks share.
  std::string source_folder;  // Of --hf-model; empty for a new model.
  std::string source_config;  // The text of its config.json.
};

// Paths of the tokenizer and generation files that are in a model's folder. Empty for an empty `folder`.
std::vector<std::string> CompanionFiles(const std::string& folder);

// Paths of the files that ExportHf makes or replaces.
std::vector<std::string> ExportedFiles(const HfExport& target);

// Every rank writes its own ranges, and rank 0 the rest. `writes` says whether this rank's shards are among
// those that make one whole model. Nothing is left behind after an error, but folders that were made.
// Collective: all ranks. Errors: kNotFound, kPermissionDenied, kResourceExhausted (names the path).
absl::Status ExportHf(Bootstrap& bootstrap, const HfExport& target, LlamaModel& model,
                      const std::vector<ShardView>& shards, bool writes, absl::Duration timeout);

}  // namespace weft
