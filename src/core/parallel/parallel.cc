#include "weft/core/parallel.h"

#include <algorithm>

#include "src/core/parallel/parallel_backend.h"

namespace weft {

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
