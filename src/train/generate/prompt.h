// Tokens of a prompt, and the tokens that end a sequence.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/train/generate.h"

namespace weft {

// The token ids of "1,2,3". Errors: kInvalidArgument (names --prompt-tokens and the item).
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(std::string_view text);

// The tokens of the prompt. Errors: kInvalidArgument (a token outside of the vocabulary; text in or out for a
// model whose tokens are not bytes; the prompt and --max-new-tokens exceed the model's positions).
absl::StatusOr<std::vector<int32_t>> ReadPrompt(const GenerateConfig& config, const LlamaConfig& model);

// The values of eos_token_id: those of generation_config.json or, in a folder without it, those of
// `hf_config`, the text of config.json. Empty: none is given.
// Errors: kDataLoss (names the file), kPermissionDenied.
absl::StatusOr<std::vector<int32_t>> ReadEndTokens(const std::string& folder, const std::string& hf_config);

}  // namespace weft
