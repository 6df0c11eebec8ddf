#include "weft/core/parallel.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>

#include "src/core/parallel_backend.h"
#include "weft/core/status.h"

namespace weft {

std::vector<int> AffinityCpus() {
  // The kernel rejects a mask smaller than its own and does not report its size. Grow the mask until it fits.
  for (int capacity = 1024; capacity <= (1 << 20); capacity *= 2) {
    std::vector<cpu_set_t> mask(CPU_ALLOC_SIZE(capacity) / sizeof(cpu_set_t) + 1);
    const size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) != 0) {
      WEFT_CHECK(errno == EINVAL, "sched_getaffinity failed for the calling thread");
      continue;
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < static_cast<int>(bytes) * 8; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, mask.data())) cpus.push_back(cpu);
    }
    return cpus;
  }
  CheckFailed(__FILE__, __LINE__, "capacity", "the kernel's affinity mask has more than 2^20 CPUs");
}

void ParallelFor(int64_t count, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (count <= 0) return;
  const int64_t max_parts = count / std::max<int64_t>(grain, 1);
  const int parts = static_cast<int>(std::clamp<int64_t>(max_parts, 1, ThreadCount()));
  if (parts == 1) {
    body(0, count);
    return;
  }
  const int64_t length = count / parts;
  const int64_t longer = count % parts;  // The first `longer` parts have one element more.
  internal::RunParts(parts, [&](int part) {
    const int64_t begin = part * length + std::min<int64_t>(part, longer);
    body(begin, begin + length + (part < longer ? 1 : 0));
  });
}

}  // namespace weft
