// Lanes of one group and purpose that operations take in turns.
//
// Note [Lane round robin]
// An operation of a lane starts on a rank when the one before is *ready* there. Between nodes that leaves the
// wire idle once for each: while the last slices of one arrive and are pulled by the ranks of the node,
// nobody asks for the first of the next, and ranks that compute take their time to. With two lanes in turns
// one operation begins while the other ends. On one node there is nothing to fill, and one lane.
//
// Ranks must take the same turns, as they must submit the same operations to a lane: who submits something
// else at some place is found out as before. Which lane is used is nothing that results depend on.
//
// Thread safety: none. Collective: Add, as CommEngine::AddLane; Next, by all ranks of the group, in one
// order. Lifetime: the engine must outlive it.
#pragma once

#include <cstddef>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/comm/comm_engine.h"

namespace weft {

class LaneRoundRobin {
 public:
  LaneRoundRobin() = default;
  static absl::StatusOr<LaneRoundRobin> Add(CommEngine& engine, const ProcessGroup& group,
                                            LanePurpose purpose);

  // The lane of the next operation.
  LaneId Next() { return lanes_[turn_++ % lanes_.size()]; }
  // After an error, on all ranks: they may have failed at different places.
  void Restart() { turn_ = 0; }

 private:
  std::vector<LaneId> lanes_;
  size_t turn_ = 0;
};

}  // namespace weft
