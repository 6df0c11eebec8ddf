// Parallel loops over the calling rank's own threads (OpenMP, or one thread where it is switched off).
//
// Thread safety: each calling thread has its own thread count, so ranks that are threads do not disturb each
// other.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/functional/function_ref.h>

namespace weft {

// Threads that loops started by the calling thread use; at least 1. Also what the matrix library uses. A
// build without OpenMP always has one.
void SetThreadCount(int threads);
int ThreadCount();

// The CPUs of the calling thread's affinity mask.
std::vector<int> AffinityCpus();

// Calls body(begin, end) over a partition of [0, count) into contiguous ranges of at least `grain` (but for
// the last), at most one a thread. Runs inline where one range is enough; ranges that run beside others have
// a ThreadCount() of 1. The body must not throw.
void ParallelFor(int64_t count, int64_t grain, absl::FunctionRef<void(int64_t begin, int64_t end)> body);

}  // namespace weft
