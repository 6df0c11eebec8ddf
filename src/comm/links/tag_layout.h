// Message tags of a transport: some for point-to-point messages, then equally many for each lane. Pure.
//
// Note [Tags]
// Problem: the slices of one (lane, peer, channel) match by tag, and MPI promises tags up to 32,767 only.
// Rule: a lane has a tag for each channel number in [0, per_lane) of its operations. Number 0 is that of
// gathers, exchanges, the first tree of a broadcast, and the halving of a relayed reduce-scatter. The others
// are those of the partial sums that a node sends, at most one for each of its ranks. Number 1 is also that
// of the second tree of a broadcast, and of the halving of a relayed all-reduce, which sends no other sums.
// Channels of announcements have no tag, and may have any number: they travel in control messages.
// Why it suffices: a node has a rank, so that per_lane is at least 2. The numbers do not depend on the number
// of nodes: with 64 ranks a node, 32,768 tags give 441 lanes between nodes to any number of ranks. Messages
// that share a number are sent one after the other.
// Without the rule: a number beyond the lane's is a tag of the next lane, whose data the receive then takes.
#pragma once

#include <algorithm>
#include <vector>

#include "weft/core/status.h"
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

  // The tag of data of a channel. REQUIRES: `number` is one of the lane's.
  int OfLane(int lane, int number) const {
    WEFT_CHECK(number >= 0 && number < per_lane, "a channel with data has a number beyond those of its lane");
    return kMessages + lane * per_lane + number;
  }
};

}  // namespace weft
