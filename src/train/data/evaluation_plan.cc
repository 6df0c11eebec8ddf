#include "src/train/data/evaluation_plan.h"

#include <algorithm>

namespace weft {
namespace {

// Enough tokens for matrix products at full speed, and few enough to divide small data over ranks.
constexpr int64_t kTokensPerPass = 1024;

}  // namespace

int64_t EvaluationPlan::windows_per_pass() const { return std::max<int64_t>(1, kTokensPerPass / seq_len); }

SequenceRange EvaluationPlan::Windows(int rank, int64_t round) const {
  const int64_t pass = FirstPass(rank) + round;
  if (pass >= FirstPass(rank + 1)) {
    return {0, 0};
  }
  const int64_t first = pass * windows_per_pass();
  return {first, std::min(windows_per_pass(), windows - first)};
}

double EvaluationPlan::Sum(absl::Span<const double> losses) const {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int64_t pass = 0; pass < PassCount(rank); ++pass) {
      for (int part = 0; part < context; ++part)
        sum += losses[static_cast<size_t>(FirstLoss(rank, part) + pass)];
    }
  }
  return sum;
}

}  // namespace weft
