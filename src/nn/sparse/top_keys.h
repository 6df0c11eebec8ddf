// Keeper of the `width` best candidates of a query, among candidates that come in any number and in order.
//
// Note [Order of candidates]
// Problem: the selection must not depend on the order in which keys come, also where scores are equal.
// Rule: a candidate is one integer. Its upper half is the score, mapped to an integer of the same order, and
//   its lower half the complement of the key's rank. The largest integers are selected.
// Why it suffices: ranks are unique, so that no two candidates are equal. NaN has a place in the order, too.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <vector>

#include <absl/types/span.h>

namespace weft {

using Candidate = uint64_t;

// `score` and its place in the order of floats. The zeros are equal.
inline uint32_t OrderedScore(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0F);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000U);
}
inline float ScoreOf(Candidate candidate) {
  const auto ordered = static_cast<uint32_t>(candidate >> 32);
  return std::bit_cast<float>(ordered ^ ((ordered >> 31) != 0 ? 0x80000000U : 0xFFFFFFFFU));
}
inline int64_t RankOf(Candidate candidate) { return ~static_cast<uint32_t>(candidate); }

class TopKeys {
 public:
  // REQUIRES: width > 0.
  explicit TopKeys(int64_t width)
      : width_(width), kept_(static_cast<size_t>(width + std::max(width, kMinSpare))) {}

  void Clear() {
    count_ = 0;
    floor_ = 0;
  }

  // Adds keys with consecutive ranks. REQUIRES: count <= kMinSpare.
  void Add(const float* scores, int64_t count, int64_t first_rank) {
    if (count_ + count > static_cast<int64_t>(kept_.size())) DropRest();
    Candidate* kept = kept_.data();
    int64_t end = count_;
    for (int64_t i = 0; i < count; ++i) {
      const Candidate candidate = Candidate{OrderedScore(scores[i])} << 32 |
                                  static_cast<uint32_t>(~static_cast<uint32_t>(first_rank + i));
      kept[end] = candidate;
      end += candidate > floor_ ? 1 : 0;
    }
    count_ = end;
  }

  // Drops all but the best `width` candidates, and calls visit(candidate) for these in the order in which
  // they came.
  template <typename Visit>
  void Finish(const Visit& visit) {
    DropRest();
    for (int64_t i = 0; i < count_; ++i) visit(kept_[static_cast<size_t>(i)]);
  }

 private:
  static constexpr int64_t kMinSpare = 256;

  void DropRest() {
    if (count_ <= width_) return;
    const Candidate lowest = LowestToKeep();
    int64_t end = 0;
    for (int64_t i = 0; i < count_; ++i) {  // Without branches: about every second candidate is dropped.
      const Candidate candidate = kept_[static_cast<size_t>(i)];
      kept_[static_cast<size_t>(end)] = candidate;
      end += candidate >= lowest ? 1 : 0;
    }
    count_ = end;
    floor_ = lowest - 1;
  }

  // The width-th largest candidate: counts candidates in bins of equal size, and sorts those of one bin.
  Candidate LowestToKeep() const {
    constexpr int kBinBits = 8;
    const absl::Span<const Candidate> kept = absl::MakeConstSpan(kept_).first(static_cast<size_t>(count_));
    Candidate least = ~Candidate{0};
    Candidate greatest = 0;
    for (const Candidate candidate : kept) {
      least = std::min(least, candidate);
      greatest = std::max(greatest, candidate);
    }
    const int shift = std::max(0, static_cast<int>(std::bit_width(greatest - least)) - kBinBits);
    std::array<int64_t, 1 << kBinBits> counts = {};
    for (const Candidate candidate : kept) ++counts[(candidate - least) >> shift];
    size_t bin = counts.size() - 1;
    int64_t wanted = width_;  // Keys to take from the bin and those below.
    while (counts[bin] < wanted) wanted -= counts[bin--];
    static thread_local std::vector<Candidate> of_bin;
    of_bin.clear();
    for (const Candidate candidate : kept) {
      if ((candidate - least) >> shift == bin) of_bin.push_back(candidate);
    }
    std::nth_element(of_bin.begin(), of_bin.begin() + wanted - 1, of_bin.end(), std::greater<>());
    return of_bin[static_cast<size_t>(wanted - 1)];
  }

  int64_t width_;
  std::vector<Candidate> kept_;
  int64_t count_ = 0;
  Candidate floor_ = 0;  // Every later candidate must be above.
};

}  // namespace weft
