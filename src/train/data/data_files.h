// Which files the paths of `--data` mean.
#pragma once

#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

namespace weft {

// Files as they are; folders as all files below them, sorted by path, hidden entries left out. Links are
// followed. Errors as Corpus::Open.
absl::StatusOr<std::vector<std::string>> ExpandDataPaths(absl::Span<const std::string> paths);

}  // namespace weft
