// Flags of `weft generate`: their names, help texts, and the fields that they set.
#pragma once

#include <CLI/CLI.hpp>

#include "weft/train/generate.h"

namespace weft {

// Binds the flags to `config`. Its present values are the defaults in the help.
// Lifetime: `config` must outlive `app`.
void AddGenerateFlags(CLI::App& app, GenerateConfig& config);

}  // namespace weft
