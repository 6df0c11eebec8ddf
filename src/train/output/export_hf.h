// Export of the trained model to a Hugging Face folder: model.safetensors, config.json, and the
// tokenizer and generation files of the source folder. With sparse attention also indexer.safetensors and
// indexer_config.json; model.safetensors has the tensors of the Llama alone.
//
// Adapters are exported to a PEFT folder: adapter_model.safetensors, adapter_config.json, and the same
// further files. Merged into the model, they leave a folder as above.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/train/files/output_folder.h"
#include "weft/mesh/bootstrap.h"
#include "weft/nn/llama.h"
#include "weft/sharding/shard_view.h"
#include "weft/train/config.h"
#include "weft/train/safetensors.h"

namespace weft {

// A tokenizer or generation file of the source folder.
struct ModelCompanion {
  std::string name;
  std::string content;
};

// The target of an export, on rank 0.
struct HfExport {
  std::unique_ptr<OutputFolder> folder;
  // The configuration files and the companions, by name.
  std::map<std::string, std::string> files;
};

// A file with weights of an export.
struct ExportedFile {
  std::string name;
  SafetensorsLayout layout;
};

// The tensors of an export: those of the model without adapters, or the adapters alone.
enum class ExportedWeights : uint8_t { kModel, kAdapters };

// The parts of a run that it exports.
ExportedWeights ExportedWeightsOf(const TrainConfig& config);

// Paths of the tokenizer and generation files that are in a model's folder. Empty for an empty `folder`.
std::vector<std::string> CompanionFiles(const std::string& folder);

// Reads the files of CompanionFiles. Errors: kNotFound, kPermissionDenied, kUnavailable, kDataLoss (names the
// path).
absl::StatusOr<std::vector<ModelCompanion>> ReadCompanions(const std::string& folder);
// config.json of weights in `dtype`, with sparse attention indexer_config.json, and the companions, by name.
// `source_config`: the text of the source folder's config.json; empty for a new Llama.
std::map<std::string, std::string> ModelFiles(const LlamaConfig& config, const std::string& source_config,
                                              const std::vector<ModelCompanion>& companions, DType dtype);
// adapter_config.json with the text `adapter_config`, and the companions, by name.
std::map<std::string, std::string> AdapterFiles(std::string adapter_config,
                                                const std::vector<ModelCompanion>& companions);

// Paths of the files that an export creates, replaces or removes in `folder`.
std::vector<std::string> ExportedFiles(const std::string& folder, const std::string& source_folder,
                                       ExportedWeights weights);

// Claims the folder for an export of `weights` with the files `files`, and checks that the files will fit.
// `others`: see HfExport::files. Errors: those of OpenExport.
absl::StatusOr<HfExport> ClaimExport(const std::string& folder, const std::string& source_folder,
                                     ExportedWeights weights, const std::vector<ExportedFile>& files,
                                     std::map<std::string, std::string> others);

// The same for an export of `model` in `dtype`, by --export-hf. `files`: see HfExport. `source_folder` is
// that of --hf-model; empty for a new Llama.
// Errors: kInvalidArgument (another run exports there; those of CheckIsNoCheckpoint), kNotFound,
//   kPermissionDenied, kResourceExhausted (no space), kUnavailable, kDataLoss (names the path).
absl::StatusOr<HfExport> OpenExport(const std::string& folder, const std::string& source_folder,
                                    std::map<std::string, std::string> files, LlamaModel& model,
                                    ExportedWeights weights, DType dtype);

// Checks that each rank with `writes` can write into the claimed folder of --export-hf. An empty `folder`:
// there is no export. REQUIRES: `folder` is empty on all ranks or on none; if not, `target` is not null on
// rank 0. Errors: those of CheckIsShared. Collective: all ranks.
absl::Status CheckExportIsShared(Bootstrap& bootstrap, const std::string& folder, const HfExport* target,
                                 bool writes, absl::Duration timeout);

// Makes the files with weights in a staging folder, lets each rank `write` its elements there, and puts all
// files of the export in place together; after an error the folder is as before. `target`: not null on rank
// 0, whose error fails all ranks. `write` gets the staging folder's path.
// Collective: all ranks. Errors: those of `target` and `write`, kNotFound, kPermissionDenied,
// kResourceExhausted (names the path).
absl::Status WriteExport(Bootstrap& bootstrap, const absl::StatusOr<const HfExport*>& target,
                         const std::vector<ExportedFile>& files,
                         absl::FunctionRef<absl::Status(const std::string& staging)> write,
                         absl::Duration timeout);

// Each rank with `writes` writes the ranges of its shards, and rank 0 writes the other files. The shards of
// the ranks with `writes` together must be one whole model. The folder must lie on a file system that all
// ranks share. All files of the export become visible together; after an error the folder is as before.
// REQUIRES: `target` is not null on rank 0.
// Collective: all ranks. Errors: kNotFound, kPermissionDenied, kResourceExhausted (names the path),
// kOutOfRange (a weight that f16 cannot hold: names the tensor).
absl::Status ExportHf(Bootstrap& bootstrap, const HfExport* target, LlamaModel& model,
                      const std::vector<ShardView>& shards, ExportedWeights weights, DType dtype, bool writes,
                      absl::Duration timeout);

}  // namespace weft
