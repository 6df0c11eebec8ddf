// Message tags of a transport: some for point-to-point messages, then equally many for each lane. Pure.
//
// Note [Tags]
// Problem: the slices of one (lane, peer, channel) match by tag, and MPI promises tags up to 32,767 only.
// Rule: a lane has a tag for each channel number of its operations. Number 0 is that of gathers and
// exchanges. The others are those of the partial sums that a node sends, at most one for each of its ranks.
// Why it suffices: the numbers do not depend on the number of nodes. With 64 ranks a node, 32,768 tags give
// 441 lanes between nodes to any number of ranks. Messages that share a number are sent one after the other.
#pragma once

#include <algorithm>
#include <vector>

#include "weft/mesh/bootstrap.h"

namespace weft {

struct TagLayout {
  // Channel numbers of point-to-point messages. Their tags are the first.
  static constexpr int kMessages = 4096;

  int per_lane;  // Channel numbers of a lane.
  int lanes;     // Lanes that have tags.

  // The layout for a transport with the tags [0, max_tag]. The same on all ranks of a job.
  static TagLayout Of(int max_tag, const NodeMap& nodes) {
    std::vector<int> ranks(static_cast<size_t>(nodes.node_count()));
    for (const int node : nodes.node_of_rank) ++ranks[static_cast<size_t>(node)];
    const int per_lane = 1 + *std::max_element(ranks.begin(), ranks.end());
    return {per_lane, std::max(0, max_tag + 1 - kMessages) / per_lane};
  }

  int OfLane(int lane, int number) const { return kMessages + lane * per_lane + number; }
};

}  // namespace weft
