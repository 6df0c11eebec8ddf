#include "src/train/planner/replay_sizes.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "src/train/plan/memory_need.h"
#include "src/train/planner/context_replay.h"
#include "weft/core/rounding.h"
#include "weft/core/status.h"
#include "weft/mesh/host_memory.h"
#include "weft/nn/llama.h"

namespace weft {
namespace {

// Bytes that all ranks together move in a step, above which sizes are divided.
constexpr double kMaxMovedBytes = 4e9;
// Bytes of each rank that hold more than its part of the model: scratch, summaries, padding.
constexpr size_t kSpareBytes = size_t{8} << 20;
constexpr size_t kBytesOfPeer = size_t{1} << 10;
constexpr int64_t kMaxDivisor = int64_t{1} << 20;

}  // namespace

absl::StatusOr<std::vector<ReplayGroup>> GroupsOf(const LlamaConfig& config,
                                                  const std::optional<LoraOptions>& lora) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<LlamaModel> model, LlamaModel::Create(config));
  if (lora) WEFT_RETURN_IF_ERROR(AddLora(*model, *lora).status());
  std::vector<ReplayGroup> groups;
  for (GroupMembers& members : GroupMembersOf(*model)) {
    const ModelPart part = members.name == "lm_head" ? ModelPart::kHead : ModelPart::kBlock;
    groups.push_back({std::move(members), groups.empty() ? ModelPart::kEmbedding : part});
  }
  return groups;
}

std::vector<GroupMembers> CopyMembers(const std::vector<ReplayGroup>& groups, int64_t divisor) {
  std::vector<GroupMembers> copies;
  for (const ReplayGroup& group : groups) {
    GroupMembers members{group.members.name, group.members.parent, {}};
    for (const auto& parameter : group.members.parameters) {
      members.parameters.push_back(std::make_shared<Parameter>(*parameter));
      if (divisor == 1) continue;
      Shape& shape = members.parameters.back()->shape;
      const bool is_matrix = shape.size() == 2;
      shape = {CeilDiv(parameter->elements(), divisor)};
      if (is_matrix) shape.push_back(1);
    }
    copies.push_back(std::move(members));
  }
  return copies;
}

namespace {

// True if exchanges of sequences treat all nodes alike: inside a node, or, between nodes, with equal parts
// and not in the order of a ring.
bool IsContextAlike(const RunPlan& plan, int ranks_per_node) {
  const ContextPlan& context = plan.context;
  if (ranks_per_node % context.size == 0) return true;
  constexpr int64_t kChunksOfRank = 2;
  return context.size % ranks_per_node == 0 && context.scheme.ring_rotation != RingRotation::kShift &&
         plan.seq_len % (kChunksOfRank * context.size) == 0;
}

}  // namespace

PartShape ShapeOfMicrobatch(const LlamaConfig& model, const RunPlan& plan, int threads) {
  PartShape shape =
      ShapeOf(model, plan.batch.sequences_per_rank(), plan.seq_len, plan.parallel.param_dtype, threads);
  shape.adapter_elements = plan.adapter_elements().value_or(0) / model.layers;
  return shape;
}

bool NodesAreAlike(const RunPlan& plan, const NodeMap& nodes) {
  const auto ranks = static_cast<int>(nodes.RanksOf(0).size());
  // A group of consecutive ranks covers whole nodes or divides one.
  const auto is_even = [&](int group) { return group % ranks == 0 || ranks % group == 0; };
  // Otherwise the nodes have different parts of the tree of a reduction.
  const bool is_power_of_two = (ranks & (ranks - 1)) == 0;
  return nodes.node_count() > 1 && is_power_of_two && is_even(plan.shard_group_size()) &&
         IsContextAlike(plan, ranks);
}

bool MirrorsNodes(const ReplayInput& input) {
  return input.nodes.size() > input.max_full_ranks && NodesAreAlike(input.plan, input.nodes);
}

int SimulatedRanks(const ReplayInput& input) {
  return MirrorsNodes(input) ? static_cast<int>(input.nodes.RanksOf(0).size()) : input.nodes.size();
}

size_t ReplaySegmentBytes(const ReplayInput& input, int64_t divisor) {
  const LlamaConfig& model = input.model;
  const int64_t adapters = input.plan.adapter_elements().value_or(0);
  const int64_t largest = LargestGroup(model) + adapters / model.layers;
  const int64_t all = model.ParameterCount() + adapters;
  const int64_t own = CeilDiv(all, input.plan.shard_group_size());
  constexpr int64_t kGroupsInFlight = 6;  // Gathered ahead, in use, given back but still read by peers.
  const bool keeps_all = !input.plan.parallel.reshard_after_forward || input.plan.shard_group_size() == 1;
  const int64_t images = keeps_all ? 2 * all : kGroupsInFlight * largest;
  const int64_t gradients =
      input.plan.parallel.grad_sync == GradientSync::kLast ? all + largest : kGroupsInFlight * largest;
  constexpr int64_t kCopiesOfShard = 4;  // Masters, gradients, partial sums, the base of a delta.
  const int64_t elements = kCopiesOfShard * own + std::min(images, 2 * all) + std::min(gradients, 2 * all);
  return static_cast<size_t>(CeilDiv(elements, divisor) * kBytesOfElement) +
         ContextSegmentBytes(input, divisor) + kSpareBytes +
         kBytesOfPeer * static_cast<size_t>(input.nodes.size());
}

// A power of two keeps the alignment of most sizes.
absl::StatusOr<int64_t> ChooseDivisor(const ReplayInput& input, int simulations) {
  WEFT_ASSIGN_OR_RETURN(const size_t available, AvailableHostMemory());
  const auto ranks = static_cast<double>(SimulatedRanks(input));
  const double moved = 3.0 * kBytesOfElement * static_cast<double>(input.model.ParameterCount()) * ranks *
                       static_cast<double>(input.plan.batch.microbatches);
  int64_t divisor = 1;
  while (moved / static_cast<double>(divisor) > kMaxMovedBytes ||
         ranks * static_cast<double>(ReplaySegmentBytes(input, divisor)) >
             static_cast<double>(available) / 2 / simulations) {
    if (divisor > kMaxDivisor) {
      return absl::ResourceExhaustedError(
          "there is too little memory on this machine to simulate so many ranks: use fewer --ranks");
    }
    divisor *= 2;
  }
  return divisor;
}

}  // namespace weft
