#include "src/train/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

namespace weft {
namespace {

// A token and its unnormalized probability.
using Candidate = std::pair<int32_t, double>;

// Candidates, the most likely first, and of equals the one with the lower id. Sorts only those that are read,
// as most draws take one of the first.
class LikelyFirst {
 public:
  explicit LikelyFirst(std::vector<Candidate> candidates) : heap_(std::move(candidates)) {
    // Before the heap, whose order depends on the library.
    for (const Candidate& candidate : heap_) sum_ += candidate.second;
    std::make_heap(heap_.begin(), heap_.end(), IsLessLikely);
  }

  size_t size() const { return heap_.size(); }

  // The candidate at `index` in the order. REQUIRES: index < size().
  const Candidate& At(size_t index) {
    for (; sorted_ <= index; ++sorted_) {
      std::pop_heap(heap_.begin(), heap_.end() - static_cast<ptrdiff_t>(sorted_), IsLessLikely);
    }
    return heap_[heap_.size() - 1 - index];
  }

  // The sum of the first `count` probabilities.
  double SumOf(size_t count) {
    if (count == size()) return sum_;
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += At(i).second;
    return sum;
  }

 private:
  static bool IsLessLikely(const Candidate& a, const Candidate& b) {
    return a.second < b.second || (a.second == b.second && a.first > b.first);
  }

  std::vector<Candidate> heap_;  // A heap of those that are not sorted yet, then the sorted ones, backwards.
  size_t sorted_ = 0;
  double sum_ = 0;  // Of all, in the order of the tokens.
};

// The number of candidates, from the most likely, whose probabilities reach `top_p` of the sum of `count`.
size_t CountWithin(LikelyFirst& candidates, size_t count, double top_p) {
  const double least = top_p * candidates.SumOf(count);
  double sum = 0;
  size_t within = 0;
  while (within < count && (within == 0 || sum < least)) sum += candidates.At(within++).second;
  return within;
}

std::vector<Candidate> Weigh(absl::Span<const float> logits, double temperature) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  const double largest = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates.emplace_back(static_cast<int32_t>(i), std::exp((logits[i] - largest) / temperature));
  }
  return candidates;
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
  LikelyFirst candidates(Weigh(logits, options_.temperature));
  size_t count = candidates.size();
  if (options_.top_k) count = std::min(count, static_cast<size_t>(*options_.top_k));
  if (options_.top_p) count = CountWithin(candidates, count, *options_.top_p);
  // 53 random bits, as the distributions of the standard library differ between implementations.
  double left = static_cast<double>(random_() >> 11) * 0x1p-53 * candidates.SumOf(count);
  for (size_t i = 0; i < count; ++i) {
    const auto& [token, weight] = candidates.At(i);
    left -= weight;
    if (left < 0) return token;
  }
  return candidates.At(count - 1).first;
}

}  // namespace weft
