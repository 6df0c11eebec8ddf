// Agreement of a group's members on the index of a lane. Pure.
//
// Note [Lane indices]
// Problem: messages and flags name a lane by its index, so that all members of its group must have it at one
// index. A rank may be in groups that others do not know, and groups are formed in different orders.
// Rule: lanes that all ranks of the bootstrap add have every fourth index, in the order of the calls. The
// other indices belong to lanes of members only. Each member proposes the indices that are free on it. All
// members see all proposals, and take the lowest index that is free on every member. A rank forms one lane at
// a time. Tables by index thus grow with the lanes, and memory bounds their number.
// Why it suffices: two ranks exchange messages and flags of a lane only if both are members of its group, and
// then both have this group at its index. Two groups may have lanes at one index, but no rank in common.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/types.h"
#include "weft/mesh/process_group.h"

namespace weft {

// Index of the n-th lane that all ranks add, from 0.
constexpr int kLanesPerLaneOfAll = 4;
constexpr int IndexOfLaneOfAll(int n) { return n * kLanesPerLaneOfAll; }
constexpr bool IsOfLaneOfAll(int index) { return index % kLanesPerLaneOfAll == 0; }

// Proposal of one member for a lane.
struct LaneProposal {
  uint64_t group_hash = 0;
  LanePurpose purpose = LanePurpose::kControl;
  int number = 0;
  int existing = -1;          // Index of the lane on this member; -1 if it has none yet.
  int limit = 0;              // Indices are below it.
  std::vector<bool> is_free;  // By index. Later indices are free.
  absl::Status status;        // Error if this member cannot add a lane.

  std::string Serialize() const;
  // Errors: kInternal (not the bytes of a proposal).
  static absl::StatusOr<LaneProposal> Parse(std::string_view bytes);
};

struct LaneDecision {
  int index;
  bool is_new;  // False: all members have the lane already, at this index.
};

// Decides the index from the proposals of all members, by group rank. All members decide alike. `name` is
// that of the lane, for messages.
// Errors: kInternal (bytes that are no proposal, or not one for each member); kFailedPrecondition (a member
//   proposes another lane; names both); kResourceExhausted (no index is free on all members); the error of
//   the first member that has one, with "rank N: " in front.
absl::StatusOr<LaneDecision> DecideLane(const ProcessGroup& group, std::string_view name,
                                        absl::Span<const std::string> proposals);

}  // namespace weft
