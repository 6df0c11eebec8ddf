// Files of data: expansion of the paths of --data, files that are no text, and names of masks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/train/corpus.h"

namespace weft {

// A file stands for itself. A folder stands for all files below it, sorted by path, without those that are
// skipped or lie in a folder that is. Links are followed. Errors: those of Corpus::Open.
absl::StatusOr<std::vector<std::string>> ExpandDataPaths(absl::Span<const std::string> paths);

// True for the entries of a data folder that are skipped: hidden ones, and the default folder of flight
// recorders.
bool IsSkippedAsData(std::string_view name);

// A warning for the first file of text whose first bytes are those of another format, such as gzip: its bytes
// are no text. Empty if there is none. Files that cannot be read are left to their readers.
std::string WarningAboutText(const Corpus& corpus);

// The file beside a data file that says which of its tokens have a loss.
inline constexpr const char* kMaskSuffix = ".mask";
std::string MaskOf(const std::string& path);

}  // namespace weft
