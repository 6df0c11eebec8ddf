// The command line of `weft`, understood: what is to be done, or what to print instead.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/train/config.h"

namespace weft {

// Text that was asked for: help or the version.
struct PrintText {
  std::string text;
};

using Command = std::variant<PrintText, TrainConfig>;

// `arguments` without the program's name. Reads the file of --config, whose keys count only where the command
// line says nothing. The configuration has passed Validate. Errors: kInvalidArgument (names the flag, key or
// value, and the nearest one that exists).
absl::StatusOr<Command> ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace weft
