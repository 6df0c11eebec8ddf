#include "src/train/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include <absl/strings/str_cat.h>

namespace weft {
namespace {

// The number of candidates, from the most likely, whose probabilities reach `top_p` of their sum.
size_t CountWithin(absl::Span<const std::pair<int32_t, double>> candidates, double top_p) {
  const double total =
      std::accumulate(candidates.begin(), candidates.end(), 0.0,
                      [](double sum, const auto& candidate) { return sum + candidate.second; });
  double sum = 0;
  size_t count = 0;
  while (count < candidates.size() && (count == 0 || sum < top_p * total)) sum += candidates[count++].second;
  return count;
}

}  // namespace

absl::StatusOr<int32_t> Sampler::Next(absl::Span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) continue;
    return absl::OutOfRangeError(
        absl::StrCat("the logit of token ", i, " is ", logits[i],
                     ", but it must be finite: the weights of the model are damaged, "
                     "or too large for --param-dtype"));
  }
  if (options_.temperature == 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  const std::vector<std::pair<int32_t, double>> candidates = Candidates(logits);
  double total = 0;
  for (const auto& [token, weight] : candidates) total += weight;
  // 53 random bits, as the distributions of the standard library differ between implementations.
  double left = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (const auto& [token, weight] : candidates) {
    left -= weight;
    if (left < 0) return token;
  }
  return candidates.back().first;
}

std::vector<std::pair<int32_t, double>> Sampler::Candidates(absl::Span<const float> logits) const {
  std::vector<std::pair<int32_t, double>> candidates;
  candidates.reserve(logits.size());
  const double largest = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates.emplace_back(static_cast<int32_t>(i), std::exp((logits[i] - largest) / options_.temperature));
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (options_.top_k) {
    candidates.resize(std::min(candidates.size(), static_cast<size_t>(*options_.top_k)));
  }
  if (options_.top_p) candidates.resize(CountWithin(candidates, *options_.top_p));
  return candidates;
}

}  // namespace weft
