#include "src/mesh/simulation/shared_cores.h"

#include <cmath>

namespace weft::internal {

void SharedCores::Advance(int64_t now_ns) {
  progress_ns_ += static_cast<double>(now_ns - last_ns_) * rate();
  last_ns_ = now_ns;
}

double SharedCores::Begin(int64_t now_ns, double core_ns, int threads) {
  Advance(now_ns);
  busy_ += threads;
  return progress_ns_ + core_ns;
}

int64_t SharedCores::Remaining(int64_t now_ns, double end) {
  Advance(now_ns);
  // Half a nanosecond is below the resolution of virtual time.
  const double left_ns = (end - progress_ns_) / rate();
  return left_ns < 0.5 ? 0 : static_cast<int64_t>(std::ceil(left_ns));
}

bool SharedCores::End(int64_t now_ns, int threads) {
  Advance(now_ns);
  const bool were_shared = busy_ > cores_;
  busy_ -= threads;
  return were_shared;
}

}  // namespace weft::internal
