// What a threading backend provides beside the thread count: one file a backend, chosen in CMake.
#pragma once

#include <absl/functional/function_ref.h>

namespace weft::internal {

// Calls body(part) for each part in [0, parts), on as many threads as the backend gives, and returns when all
// are done.
void RunParts(int parts, absl::FunctionRef<void(int part)> body);

}  // namespace weft::internal
