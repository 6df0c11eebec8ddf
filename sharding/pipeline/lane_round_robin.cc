#include "sharding/pipeline/lane_round_robin.h"

#include "weft/core/status.h"

namespace weft {

// The number of lanes depends on the node map alone, so all ranks of the engine add the same number.
absl::StatusOr<LaneRoundRobin> LaneRoundRobin::Add(CommEngine& engine, const ProcessGroup& group,
                                                   LanePurpose purpose) {
  const int count = engine.bootstrap().node_map().node_count() > 1 ? 2 : 1;
  LaneRoundRobin lanes;
  for (int i = 0; i < count; ++i) {
    WEFT_ASSIGN_OR_RETURN(lanes.lanes_.emplace_back(), engine.SharedLane(group, purpose, i));
  }
  return lanes;
}

}  // namespace weft
