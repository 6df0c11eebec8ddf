// Configuration files of model folders.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/train/files/json.h"

namespace weft {

// Above the needs of any model. It also bounds the files of an export, which keep unknown keys.
inline constexpr int64_t kMaxConfigFileBytes = 1 << 20;

// Checks and parses the text of such a file, which must be a JSON object. `kind`: the file in messages, as in
// "Hugging Face config.json". Errors: kDataLoss.
absl::StatusOr<Json> ParseConfigFile(std::string_view text, const std::string& path, const char* kind);

// The error of ParseConfigFile for a text that is not a JSON object.
absl::Status NotAConfigFile(const std::string& path, const char* kind);

}  // namespace weft
