// Tokens of a prompt, and the tokens that end a sequence.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/train/generate.h"

namespace weft {

// The token ids of "1,2,3". Errors: kInvalidArgument (names --prompt-tokens and the item).
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(std::string_view text);

// The token ids of a file, as ParseTokenIds takes them. "-" is the standard input: if it is a terminal,
// `messages`, if not null, gets a line that says so.
// Errors: kDataLoss (names the item), and those of the system.
absl::StatusOr<std::string> ReadTokenIds(const std::string& path, std::FILE* messages);

// The tokens of the prompt. REQUIRES: prompt_tokens has those of prompt_tokens_file, if there is one.
// Errors: kInvalidArgument (a token outside of the vocabulary; text in or out for a model whose tokens are
//   not bytes).
absl::StatusOr<std::vector<int32_t>> ReadPrompt(const GenerateConfig& config, const LlamaConfig& model);

// Pure. The rope_sequence of a model that generates after a prompt. With a KvCache the frequencies must be
// the same in all passes. Those of dynamic scaling are so within max_positions only, and those of longrope on
// one side of the original positions.
int64_t GenerationRopeSequence(const LlamaConfig& model, int64_t prompt_tokens);

// Pure. REQUIRES: the model has the rope_sequence above. Errors: kInvalidArgument (the prompt and
// max_new_tokens exceed the positions that the model can generate; the scaling that limits them is named).
absl::Status CheckLength(const LlamaConfig& model, int64_t prompt_tokens, int64_t max_new_tokens);

// The values of eos_token_id, in ascending order: those of generation_config.json or, in a folder without it,
// those of `hf_config`, the text of config.json. Empty: none is given.
// Errors: kDataLoss (names the file, also if a token is not below `vocab_size`), kPermissionDenied.
absl::StatusOr<std::vector<int32_t>> ReadEndTokens(const std::string& folder, const std::string& hf_config,
                                                   int64_t vocab_size);

}  // namespace weft
