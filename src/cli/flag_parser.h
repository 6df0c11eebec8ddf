// Parser of flags with CLI11, from the command line and from files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/cli/command_line.h"

namespace weft {

// Parses flags. Returns the help text if it is asked for.
// Errors: kInvalidArgument (names the flag or argument, and the nearest flag that exists).
absl::StatusOr<std::optional<PrintText>> ParseFlags(CLI::App& app, const char* usage,
                                                    const std::vector<std::string>& arguments);

// Refuses values such as [a,b]: CLI11 splits such a value of a flag that takes several, and would use other
// files than the one named.
absl::Status CheckBrackets(const std::vector<std::string>& values);

// Applies the keys of a file, unless the command line has set their flags.
// Errors: kInvalidArgument (names the key, and the nearest one that exists), kNotFound, kPermissionDenied,
//   kDataLoss (the file cannot be read, is no regular file, or is too large).
absl::Status ApplyConfigFile(CLI::App& app, const std::string& path);

// The flags that were given, on the command line or in a file, as a file of --config. Without those that
// every run needs anew.
std::string GivenFlags(const CLI::App& app);

}  // namespace weft
