// Tokens for the start and the end of a text, from the tokenizer in a model folder.
#pragma once

#include <string>

#include <absl/status/statusor.h>

#include "src/train/files/json.h"

namespace weft {

// True for a whole number that the largest vocabulary has as a token.
bool IsTokenId(const Json& value);

// Returns the text of a config.json whose bos_token_id and eos_token_id are those of the folder's tokenizer:
// the ids of the tokens that tokenizer_config.json names, else the ids in generation_config.json. Keeps the
// keys for which the folder has neither. For new models, whose config.json may be that of another tokenizer.
// REQUIRES: `config` has passed ParseHfConfig.
// Errors: those of ReadModelFile; kDataLoss (names file and token: a file is not JSON, or the tokenizer does
// not have a token that tokenizer_config.json names).
absl::StatusOr<std::string> WithTokensOfTokenizer(const std::string& config, const std::string& folder);

}  // namespace weft
