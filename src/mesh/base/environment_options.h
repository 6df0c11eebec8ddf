// Options of the environment that every bootstrap of processes has.
#pragma once

#include <cstdlib>

#include <absl/time/time.h>

#include "src/mesh/base/deadline.h"
#include "weft/mesh/bootstrap.h"
#include "weft/mesh/share_domain.h"

namespace weft::internal {

// Sets `option` to `found`, or adds its error to `options`. `Options` is that of a bootstrap.
template <typename Options, typename Found, typename Option>
void TakeOption(const Found& found, Options& options, Option& option) {
  if (found.ok()) option = *found;
  options.error.Update(found.status());
}

// Reads WEFT_STARTUP_TIMEOUT_S, WEFT_TIMEOUT_S, WEFT_NUMA_NODE and WEFT_NETWORK, where they are set.
template <typename Options>
void TakeCommonOptions(Options& options) {
  TakeOption(SecondsFromEnvironment("WEFT_STARTUP_TIMEOUT_S", absl::ToDoubleSeconds(options.startup_timeout)),
             options, options.startup_timeout);
  TakeOption(DefaultTimeout(), options, options.timeout);
  TakeOption(NumaNodeFromEnvironment(), options, options.numa_node);
  if (const char* const network = std::getenv("WEFT_NETWORK"); network != nullptr) options.network = network;
}

}  // namespace weft::internal
