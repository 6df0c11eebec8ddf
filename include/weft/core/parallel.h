// Parallel loops on the calling rank's own threads, with OpenMP. A build without OpenMP runs them on one
// thread.
//
// Thread safety: any thread may call. Each calling thread has its own thread count, so that ranks that are
// threads of one process do not affect each other.
#pragma once

#include <cstdint>

#include <absl/functional/function_ref.h>

namespace weft {

// Number of threads for loops that the calling thread starts. The matrix library uses the same number. A
// build without OpenMP always has one.
// REQUIRES: threads >= 1.
void SetThreadCount(int threads);
int ThreadCount();

// Calls body(begin, end) for a partition of [0, count) into contiguous ranges, at most one per thread. Every
// range has at least `grain` elements, unless `count` is smaller. A single range runs inline. While several
// ranges run, ThreadCount() is 1 inside each of them. The body must not throw.
void ParallelFor(int64_t count, int64_t grain, absl::FunctionRef<void(int64_t begin, int64_t end)> body);

}  // namespace weft
