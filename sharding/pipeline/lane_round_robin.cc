#include "weft/sharding/lane_round_robin.h"

#include "weft/core/status.h"

namespace weft {

// All ranks of the engine add the same number, wherever their own group lies.
absl::StatusOr<LaneRoundRobin> LaneRoundRobin::Add(CommEngine& engine, const ProcessGroup& group,
                                                   LanePurpose purpose) {
  const int count = engine.bootstrap().node_map().node_count() > 1 ? 2 : 1;
  LaneRoundRobin turns;
  for (int i = 0; i < count; ++i) {
    WEFT_ASSIGN_OR_RETURN(turns.lanes_.emplace_back(), engine.AddLane(group, purpose));
  }
  return turns;
}

}  // namespace weft
