// Threading backend that uses OpenMP. The thread count is OpenMP's internal control variable (nthreads-var)
// of the calling thread; other libraries that use OpenMP read it too.
#include <omp.h>

#include "src/core/parallel/parallel_backend.h"
#include "weft/core/parallel.h"
#include "weft/core/status.h"

namespace weft {

void SetThreadCount(int threads) {
  WEFT_CHECK(threads >= 1, "a rank needs at least one thread");
  omp_set_num_threads(threads);
}

int ThreadCount() { return omp_get_max_threads(); }

namespace internal {

void RunParts(int parts, absl::FunctionRef<void(int)> body) {
  // A worksharing loop: inside another parallel region, OpenMP provides fewer threads than `parts`.
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) {
    omp_set_num_threads(1);  // Applies to this part only: loops inside the body must run on one thread.
    body(part);
  }
}

}  // namespace internal
}  // namespace weft
