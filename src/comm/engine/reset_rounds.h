// Rounds of blobs in which all ranks agree on the phases of an engine's reset.
//
// Note [Reset rounds]
// Problem: the bootstrap matches rounds by position. A rank that gives up at its deadline has used one
// position. It tries again with the next one, in which a late peer still continues the first attempt. From
// then on, the ranks would pair different phases, and every attempt would time out.
// Rule: each blob carries the number of its attempt and its phase. The ranks agree if all blobs of a round
// have the same attempt and phase. Otherwise every rank that completes the round returns to the first phase,
// with the highest number of an attempt in that round.
// Why it suffices: all ranks that complete a round see the same blobs, and so decide alike. A late rank
// completes the rounds that its peers have abandoned without waiting, and reaches their current round.
//
// Commitment: a rank may time out in the last phase although a peer completes it. Such a rank installs its
// fresh core and link too, and fails them at once. The peer gets the failure notice, and both may reset
// again.
//
// Thread safety: none.
// Collective: Agree, by all ranks of the bootstrap.
#pragma once

#include <cstdint>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

class ResetRounds {
 public:
  enum class Phase : uint32_t {
    kQuiet,   // No rank accesses memory of another.
    kCommit,  // All ranks have cleared their flags and opened the new link.
  };

  // Lifetime: `bootstrap` must outlive the rounds.
  explicit ResetRounds(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}

  // Starts another attempt.
  void BeginAttempt() { ++attempt_; }
  // Number of the attempt. Equal on all ranks once they have agreed on a phase. It only grows.
  uint32_t attempt() const { return attempt_; }

  // True if all ranks are in this phase of this attempt. False: return to the first phase.
  // After an agreement, the link counts of all bootstraps are equal. See Bootstrap::SkipLinks.
  // Errors: kDeadlineExceeded (names the missing ranks).
  absl::StatusOr<bool> Agree(Phase phase, absl::Duration timeout);

 private:
  Bootstrap& bootstrap_;
  uint32_t attempt_ = 0;
};

}  // namespace weft
