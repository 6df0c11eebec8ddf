// Reader and writer of config.json of a Hugging Face folder, and of indexer_config.json beside it.
//
// The architectures (model_type) are llama, mistral, qwen2, qwen3 and gemma, with the keys of transformers'
// configuration classes, and the older rope_theta and rope_scaling, or the newer rope_parameters.
// docs/training.md lists keys and values. A value that weft's model does not support (another architecture,
// biases of the feed-forward layer, dropout, another activation, other rope types, quantized weights), or one
// that versions of transformers read differently, is an error that names the key. Otherwise weft would train
// a different model than the folder's without notice.
//
// indexer_config.json describes the indexers of sparse attention, whose weights are in indexer.safetensors.
// Its keys are those of DeepSeek-V3.2: index_n_heads, index_head_dim and index_topk. Readers of the Llama
// ignore both files.
#pragma once

#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/core/dtype.h"
#include "weft/nn/llama_config.h"

namespace weft {

// Parses the text of a config.json. Errors: kDataLoss (not JSON; a key is missing, has the wrong type or is
// out of range), kUnimplemented (an unsupported value). Messages name `path` and the key.
absl::StatusOr<LlamaConfig> ParseHfConfig(std::string_view json, const std::string& path);

// Reads the text of a folder's config.json. Errors: kNotFound, kPermissionDenied, kUnavailable, kDataLoss
// (not a regular file, or too large).
absl::StatusOr<std::string> ReadHfConfigText(const std::string& folder);
// Reads and parses the config.json of a folder. Errors: those of ParseHfConfig and ReadHfConfigText.
absl::StatusOr<LlamaConfig> ReadHfConfig(const std::string& folder);

// Formats the config.json of `config` with weights in `dtype`: f32, bf16 or f16. `source` is the text of the
// config.json that the model came from: its architecture and its other keys, such as token ids, are kept.
// `source` is empty for a new Llama.
std::string FormatHfConfig(const LlamaConfig& config, std::string_view source, DType dtype = DType::kF32);

// The text of the config.json of any model, with `dtype` as that of its weights, which older ones have as
// torch_dtype. All other text is kept, also the values Infinity and NaN that Python writes, and is not
// checked.
// Errors: kDataLoss (not a JSON object; names `path`).
absl::StatusOr<std::string> SetHfDtype(std::string_view json, const std::string& path, DType dtype);

// The same for an indexer_config.json. Errors: those of ParseHfConfig.
absl::StatusOr<SparseAttentionConfig> ParseIndexerConfig(std::string_view json, const std::string& path);
// Errors: those of ParseIndexerConfig, kNotFound, kPermissionDenied.
absl::StatusOr<SparseAttentionConfig> ReadIndexerConfig(const std::string& folder);
std::string FormatIndexerConfig(const SparseAttentionConfig& config);

}  // namespace weft
