// Which hops of a ring by shift are worth making.
//
// Rank r's block of keys and values travels to r+1, r+2, …; at *distance* d it is at rank r+d. It goes as far
// as the last rank that sees any of it under the mask, so a causal mask over a contiguous layout sends
// nothing around the end, and a window sends to a few neighbours. Its gradients start at the first rank that
// sees it, follow it to the last, and go home from there. All ranks compute the same plan, so both ends of
// every hop agree without a word.
//
// Pure. Thread safety: a value.
#pragma once

#include <cstddef>
#include <vector>

#include "weft/nn/attention_mask.h"
#include "weft/nn/token_runs.h"

namespace weft {

class RingPlan {
 public:
  RingPlan(const AttentionMask& mask, const std::vector<TokenRuns>& parts);

  // Whose block is at `rank`, `distance` away from home; and where a rank's block is then.
  int SourceAt(int rank, int distance) const { return (rank - distance % ranks_ + ranks_) % ranks_; }
  int RankAt(int source, int distance) const { return (source + distance) % ranks_; }

  // Whether the rank at that distance sees any of the block.
  bool Sees(int source, int distance) const;
  // Whether the block's keys and values make the hop that ends at that distance.
  bool Travels(int source, int distance) const {
    return distance <= reaches_[static_cast<size_t>(source)].last;
  }
  // Whether its gradients leave the rank at that distance for the next one, or for home; never both.
  bool GradientsTravel(int source, int distance) const;
  bool GradientsGoHome(int source, int distance) const;

  // Hops that any block makes; and whether there is a round of gradients at a distance: any go on, or home.
  int hops() const { return hops_; }
  bool AnyGradientsMove(int distance) const;

 private:
  size_t At(int source, int distance) const {
    return static_cast<size_t>(source) * static_cast<size_t>(ranks_) + static_cast<size_t>(distance);
  }
  struct Reach {
    int first = 0;  // Of the distances at which it is seen, 0 if none.
    int last = 0;
  };

  int ranks_;
  int hops_ = 0;
  std::vector<bool> sees_;  // [source, distance]
  std::vector<Reach> reaches_;
};

}  // namespace weft
