// Lanes of one process group and purpose that take operations in round-robin order.
//
// Note [Lane round robin]
// Problem: an operation of a lane starts on a rank when the previous one is *ready* there. Between nodes this
// idles the wire between two operations: the last slices of one still arrive and are pulled by local ranks,
// and nothing requests the first slices of the next. Rule: with several nodes a group has two lanes, and
// operations alternate between them. One operation starts while the previous one ends. On a single node there
// is no wire to keep busy, and one lane is enough. Why it suffices: all ranks submit the same operations in
// the same order, so they pick the same lanes. A rank that submits another operation at some place is
// reported as a mismatch, as on a single lane. Results do not depend on the lane.
//
// Thread safety: none.
// Collective: Add, as CommEngine::SharedLane; Next, by all ranks of the group, in one order.
// Lifetime: the engine must outlive it.
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
  LaneId Next() { return lanes_[next_++ % lanes_.size()]; }
  // Starts again with the first lane. Due on all ranks after an error, since they may have failed at
  // different operations.
  void Restart() { next_ = 0; }

 private:
  std::vector<LaneId> lanes_;
  size_t next_ = 0;
};

}  // namespace weft
