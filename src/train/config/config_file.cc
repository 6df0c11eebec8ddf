#include "src/train/config/config_file.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "src/train/files/json_text.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr JsonLimits kLimits = {.levels = 32, .values = 20'000, .token_bytes = kMaxConfigFileBytes};

}  // namespace

absl::StatusOr<Json> ParseConfigFile(std::string_view text, const std::string& path, const char* kind) {
  if (text.size() > kMaxConfigFileBytes) {
    return absl::DataLossError(absl::StrCat("'", path, "' has ", text.size(), " bytes, but at most ",
                                            kMaxConfigFileBytes, " are allowed: is it a ", kind, "?"));
  }
  WEFT_RETURN_IF_ERROR(Annotate(CheckJsonText(text, kLimits), absl::StrCat("'", path, "'")));
  Json json = ParseJson(text);
  if (json.is_object()) return json;
  return NotAConfigFile(path, kind);
}

absl::Status NotAConfigFile(const std::string& path, const char* kind) {
  return absl::DataLossError(absl::StrCat("'", path, "' is not a JSON object: is it a ", kind, "?"));
}

}  // namespace weft
