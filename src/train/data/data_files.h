// Expansion of the paths of --data into files.
#pragma once

#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

namespace weft {

// A file stands for itself. A folder stands for all files below it, sorted by path, without hidden ones.
// Links are followed. Errors: those of Corpus::Open.
absl::StatusOr<std::vector<std::string>> ExpandDataPaths(absl::Span<const std::string> paths);

}  // namespace weft
