// Access to the files of a model folder, which may be untrusted.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "src/train/files/file_io.h"

namespace weft {

// Opens a file of a model folder. A link must lead to a file of the model's own store: the folder itself or,
// for a snapshot in a Hugging Face cache (models--…/snapshots/REVISION), the folder of the model in the
// cache.
// Errors: kNotFound; kPermissionDenied (also for a link that leaves the store: names its target);
// kUnavailable; kDataLoss.
absl::StatusOr<File> OpenModelFile(const std::string& folder, const std::string& name);

// Reads a whole file of a model folder. Errors: those of OpenModelFile, and kDataLoss (more than
// `max_bytes`).
absl::StatusOr<std::string> ReadModelFile(const std::string& folder, const std::string& name,
                                          int64_t max_bytes);

inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kWeightsFile = "model.safetensors";  // The weights of a model in one file.
inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";  // Of weights in several files.
// Stems of the files with weights, as in model.safetensors: those of the Llama, and those of the indexers of
// sparse attention, which kIndexerConfig describes.
inline constexpr const char* kModelFiles = "model";
inline constexpr const char* kIndexerFiles = "indexer";
inline constexpr const char* kIndexerConfig = "indexer_config.json";
// The same of low-rank adapters (LoRA), in the layout of PEFT.
inline constexpr const char* kAdapterFiles = "adapter_model";
inline constexpr const char* kAdapterConfig = "adapter_config.json";

// True for the name of a file with weights, of their index, or of the description of indexers or adapters. An
// export removes such files of an earlier export, because readers would load them.
bool IsWeightsFile(const std::string& name);

// Checks that an export of adapters into `folder` would remove no weights of a model, and that of a model no
// adapters. Errors: kInvalidArgument, those of the file system.
absl::Status CheckHasNoModel(const std::string& folder);
absl::Status CheckHasNoAdapters(const std::string& folder);

}  // namespace weft
