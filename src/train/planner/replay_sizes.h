// Parameter groups and memory of a replay, and by how much its sizes are divided.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <absl/status/statusor.h>

#include "src/train/planner/costs.h"
#include "src/train/planner/replay.h"
#include "weft/nn/linear.h"
#include "weft/nn/llama_config.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {

inline constexpr int kRootGroup = 0;
inline constexpr int64_t kBytesOfElement = 4;

// A parameter group of the model, in forward order, and the part of the model that it computes.
struct ReplayGroup {
  GroupMembers members;
  ModelPart part = ModelPart::kBlock;
};

// The groups of GroupMembersOf.
absl::StatusOr<std::vector<ReplayGroup>> GroupsOf(const LlamaConfig& config,
                                                  const std::optional<LoraOptions>& lora);

// The groups' members with 1 / divisor of their elements, as copies: the parameters of a rank point to its
// memory. Matrices stay matrices.
std::vector<GroupMembers> CopyMembers(const std::vector<ReplayGroup>& groups, int64_t divisor);

// True if one node stands for all; the ranks and the nodes that are simulated.
bool MirrorsNodes(const ReplayInput& input);
int SimulatedRanks(const ReplayInput& input);
inline int SimulatedNodes(const ReplayInput& input) {
  return MirrorsNodes(input) ? 1 : input.nodes.node_count();
}

// Node memory of a simulated rank, for everything that it may hold at once. Untouched pages take no memory.
size_t ReplaySegmentBytes(const ReplayInput& input, int64_t divisor);

}  // namespace weft
