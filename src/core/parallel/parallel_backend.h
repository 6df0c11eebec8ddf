// Interface of a threading backend: runs a fixed number of calls on several threads. A backend also
// implements SetThreadCount and ThreadCount of parallel.h. CMake chooses its source file.
#pragma once

#include <absl/functional/function_ref.h>

namespace weft::internal {

// Calls body(part) for each part in [0, parts), on as many threads as the backend provides. Returns when all
// calls have returned.
void RunParts(int parts, absl::FunctionRef<void(int part)> body);

}  // namespace weft::internal
