// Files with one JSON object a line, as `weft train` writes them, which may be damaged or those of strangers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include "src/train/files/json.h"

namespace weft {

// Calls `read` with each line that holds a JSON object, in order. Commas at the ends of lines are left out.
// `skip` is called with each other line, and returns whether it may be skipped.
// Errors: those of ReadWholeFile and of `read`; kDataLoss (another line). Messages name file and line.
absl::Status ReadJsonLines(const std::string& path, absl::FunctionRef<bool(std::string_view)> skip,
                           absl::FunctionRef<absl::Status(const Json&)> read);

// The number at `key`, or `fallback` if there is none.
double NumberAt(const Json& object, const char* key, double fallback);
// The text at `key`; empty if there is none.
std::string TextAt(const Json& object, const char* key);

}  // namespace weft
