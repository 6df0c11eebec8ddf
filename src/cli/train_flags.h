// Flags of `weft train` and `weft plan`: their names, groups, help texts, and the fields that they set.
#pragma once

#include <CLI/CLI.hpp>

#include "src/cli/flag_group.h"
#include "weft/train/config.h"
#include "weft/train/planner.h"

namespace weft {

// Binds the flags to `config`. Its present values are the defaults in the help.
// Lifetime: `config` must outlive `app`.
void AddTrainFlags(CLI::App& app, TrainConfig& config);
// The flags of `weft plan` that `weft train` does not have. Lifetime: `options` must outlive `app`.
void AddPlanFlags(CLI::App& app, PlanOptions& options);

// The flags of gathers of weights, which `weft generate` has too.
void AddGatherFlags(FlagGroup& group, ParallelOptions& parallel);

}  // namespace weft
