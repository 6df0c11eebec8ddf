// The flags of `weft train`: names, groups, help and the fields of the configuration that they set.
#pragma once

#include <CLI/CLI.hpp>

#include "weft/train/config.h"

namespace weft {

// Binds the flags to `config`, whose values are the defaults shown in the help. `config` must outlive `app`.
void AddTrainFlags(CLI::App& app, TrainConfig& config);

}  // namespace weft
