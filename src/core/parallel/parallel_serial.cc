// Threading backend with one thread per rank. Used without OpenMP, and with ThreadSanitizer, which does not
// see OpenMP's synchronization.
#include "src/core/parallel/parallel_backend.h"
#include "weft/core/parallel.h"
#include "weft/core/status.h"

namespace weft {

void SetThreadCount(int threads) { WEFT_CHECK(threads >= 1, "a rank needs at least one thread"); }

int ThreadCount() { return 1; }

namespace internal {

void RunParts(int parts, absl::FunctionRef<void(int)> body) {
  for (int part = 0; part < parts; ++part) body(part);
}

}  // namespace internal
}  // namespace weft
