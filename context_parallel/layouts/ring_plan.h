// Hops of a ring by shift that a mask makes necessary.
//
// Rank r owns a block of keys and values. The block moves to ranks r+1, r+2, …; after d hops, at *distance*
// d, it is at rank r+d. It moves as far as the last rank with a query that may attend to it. So a causal mask
// over a contiguous layout sends no block from the last rank to the first, and a window sends blocks to a few
// ranks only. The gradients of a block start at the first remote rank that attends to it, follow the block to
// the last one, and return from there to the owner. All ranks compute the same plan, so that sender and
// receiver of a hop agree without a message.
//
// Pure. Thread safety: a value.
#pragma once

#include <cstddef>
#include <vector>

#include "weft/context_parallel/sequence_layout.h"
#include "weft/nn/attention_mask.h"
#include "weft/nn/token_runs.h"

namespace weft {

// The smallest range of `queries`, in tokens, that contains every run with a query that may attend to any of
// `keys`.
TokenRange AttendingQueries(const AttentionMask& mask, const TokenRuns& queries, const TokenRuns& keys);

class RingPlan {
 public:
  RingPlan(const AttentionMask& mask, const std::vector<TokenRuns>& parts);

  // Owner of the block that is at `rank` after `distance` hops, and the rank of an owner's block then.
  int OwnerAt(int rank, int distance) const { return (rank - distance % ranks_ + ranks_) % ranks_; }
  int RankAt(int owner, int distance) const { return (owner + distance) % ranks_; }

  // True if a query of the rank at that distance may attend to the owner's block.
  bool Attends(int owner, int distance) const { return attends_[Index(owner, distance)]; }
  // True if keys and values of the block make the hop that ends at that distance.
  bool Reaches(int owner, int distance) const { return distance <= spans_[static_cast<size_t>(owner)].last; }
  // True if the rank at that distance sends the block's gradients to the next rank, or to the owner. At most
  // one of the two is true.
  bool PassesGradientsOn(int owner, int distance) const;
  bool ReturnsGradients(int owner, int distance) const;

  // Number of hops of the block that moves farthest.
  int hops() const { return hops_; }
  // True if any rank sends gradients at that distance.
  bool SendsAnyGradients(int distance) const;

 private:
  size_t Index(int owner, int distance) const {
    return static_cast<size_t>(owner) * static_cast<size_t>(ranks_) + static_cast<size_t>(distance);
  }
  // First and last distance >= 1 at which a rank attends to a block; 0 if there is none.
  struct Span {
    int first = 0;
    int last = 0;
  };

  int ranks_;
  int hops_ = 0;
  std::vector<bool> attends_;  // [owner, distance]
  std::vector<Span> spans_;    // [owner]
};

}  // namespace weft
