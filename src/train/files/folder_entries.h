// Entries of a folder: paths, presence, names, removal.
#pragma once

#include <string>
#include <system_error>
#include <vector>

#include <absl/status/statusor.h>

namespace weft {

std::string InFolder(const std::string& folder, const std::string& name);
// Also true for a link whose target does not exist.
bool Exists(const std::string& path);
// The names in a folder, in no order. Errors: those of the system.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder);
// Removes a file, or a folder with its content, as far as the system allows it. Returns the error of a part
// that is left. Nothing at `path` is no error.
std::error_code RemoveTree(const std::string& path);

}  // namespace weft
