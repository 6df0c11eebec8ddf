// Threads by OpenMP. The thread count is the calling thread's own ICV, which libraries that use OpenMP read
// as well.
#include <omp.h>

#include "src/core/parallel_backend.h"
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
  // A loop, not one part a thread: inside another parallel region OpenMP gives fewer threads than asked for.
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) {
    omp_set_num_threads(1);  // Of this part's own environment: what it calls must not count on more threads.
    body(part);
  }
}

}  // namespace internal
}  // namespace weft
