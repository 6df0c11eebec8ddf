// Flags of `weft train`: their names, groups, help texts, and the fields that they set.
#pragma once

#include <CLI/CLI.hpp>

#include "src/cli/flag_group.h"
#include "weft/train/config.h"

namespace weft {

// Binds the flags to `config`. Its present values are the defaults in the help.
// Lifetime: `config` must outlive `app`.
void AddTrainFlags(CLI::App& app, TrainConfig& config);

// The flags of gathers of weights, which `weft generate` has too.
void AddGatherFlags(FlagGroup& group, ParallelOptions& parallel);

}  // namespace weft
