// Export of the trained model to a Hugging Face folder: model.safetensors in fp32, config.json, and the
// tokenizer and generation files of the source folder.
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
  std::string folder;         // Created if needed. REQUIRES: on a file system that all ranks share.
  std::string source_folder;  // The folder of --hf-model; empty for a new model.
  std::string source_config;  // The text of the source folder's config.json.
};

// Paths of the tokenizer and generation files that are in a model's folder. Empty for an empty `folder`.
std::vector<std::string> CompanionFiles(const std::string& folder);

// Paths of the files that ExportHf creates or replaces.
std::vector<std::string> ExportedFiles(const HfExport& target);

// Each rank with `writes` writes the ranges of its shards, and rank 0 writes the other files. The weights get
// their name last. After an error other than kDeadlineExceeded, model.safetensors is as before; created
// folders and other complete files may remain.
// REQUIRES: the shards of the ranks with `writes` together are one whole model.
// Collective: all ranks.
// Errors: kNotFound, kPermissionDenied, kResourceExhausted, kDataLoss (names the path), kDeadlineExceeded.
absl::Status ExportHf(Bootstrap& bootstrap, const HfExport& target, LlamaModel& model,
                      const std::vector<ShardView>& shards, bool writes, absl::Duration timeout);

}  // namespace weft
