// Flags of `weft launch`: their names, help texts, and the fields that they set.
#pragma once

#include <CLI/CLI.hpp>

#include "weft/launch/launch.h"

namespace weft {

// Binds the flags to `options`. Its present values are the defaults in the help.
// Lifetime: `options` must outlive `app`.
void AddLaunchFlags(CLI::App& app, LaunchOptions& options);

}  // namespace weft
