#include "weft/sharding/byte_formulas.h"

#include <algorithm>
#include <vector>

#include "sharding/plan/replica_slices.h"

namespace weft {
namespace {

// A group whose parts lie in ranges of a buffer, and its consecutive ranks on each of its nodes.
struct RangedGroup {
  std::vector<std::vector<FlatRange>> parts;  // By rank.
  int nodes;
  int rank;
};

// Bytes of a part in slices that no range holds whole.
int64_t CrossingBytes(const std::vector<FlatRange>& part, DType dtype, int64_t slice_bytes) {
  const int64_t slice = std::max<int64_t>(1, slice_bytes / static_cast<int64_t>(SizeOf(dtype)));
  const auto joined = PartRanges::Make({part}).value();
  const int64_t count = joined->total();
  int64_t crossing = 0;
  for (const PartRanges::PlacedRange& placed : joined->part(0)) {
    // The slice in which the range ends crosses a bound, unless the slice ends there too. It is counted at
    // its first bound.
    const int64_t begin = placed.end_place() / slice * slice;
    const bool is_first_bound = placed.place <= begin;
    if (placed.end_place() == count || placed.end_place() == begin || !is_first_bound) continue;
    crossing += std::min(slice, count - begin);
  }
  return BytesOf(crossing, dtype);
}

// Bytes that an all-gather packs and unpacks on this rank. `is_in_place`: its own part lies in ranges.
int64_t PackedByAllGather(const RangedGroup& group, bool is_in_place, DType dtype, int64_t slice_bytes) {
  if (group.nodes == 1) return 0;
  const auto size = static_cast<int>(group.parts.size());
  const int ranks_per_node = size / group.nodes;
  int64_t bytes = 0;
  for (int rank = group.rank % ranks_per_node; rank < size; rank += ranks_per_node) {
    const int64_t crossing = CrossingBytes(group.parts[static_cast<size_t>(rank)], dtype, slice_bytes);
    if (rank != group.rank) bytes += crossing;
    if (rank == group.rank && is_in_place) bytes += crossing * (group.nodes - 1);
  }
  return bytes;
}

// Bytes that a reduce-scatter packs on this rank.
int64_t PackedByReduceScatter(const RangedGroup& group, DType dtype, int64_t slice_bytes) {
  const auto size = static_cast<int>(group.parts.size());
  if (group.nodes == 1 || group.nodes < size) return 0;
  int64_t bytes = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == group.rank) continue;
    bytes += CrossingBytes(group.parts[static_cast<size_t>(rank)], dtype, slice_bytes);
  }
  return bytes;
}

// True if the parts of ranks lie in ranges.
bool IsRanged(const FlatLayout& layout) { return IsZeroCopy(layout.kind()) && !layout.is_end_to_end(); }

RangedGroup ShardParts(const FlatLayout& layout, const StepShape& shape) {
  RangedGroup group{{}, shape.shard_group_nodes(), shape.shard_rank};
  for (int rank = 0; rank < shape.shard_size; ++rank) group.parts.push_back(layout.ImageRanges(rank));
  return group;
}

RangedGroup GradientParts(const FlatLayout& layout, const StepShape& shape) {
  RangedGroup group{{}, shape.shard_group_nodes(), shape.shard_rank};
  for (int rank = 0; rank < shape.shard_size; ++rank) group.parts.push_back(layout.ReducedRanges(rank));
  return group;
}

int64_t CopiedByUnshard(const FlatLayout& layout, const ShardingPolicy& policy, const StepShape& shape) {
  const bool casts = policy.param_dtype != DType::kF32;
  const int64_t own_elements = layout.shard_elements(shape.shard_rank);
  if (policy.is_zero_copy()) return casts ? BytesOf(own_elements, policy.param_dtype) : 0;
  // In a shard group of one rank the copy out of the master casts as well.
  const int64_t cast = casts && shape.shard_size > 1 ? own_elements : 0;
  return BytesOf(layout.parameter_elements() + cast, policy.param_dtype);
}

// Bytes that a reduce-scatter of `elements` over `group_nodes` nodes hands to the link between nodes. Partial
// sums of several ranks of a node are sent in fp32 if the dtype is f16.
int64_t ReducedOverWires(int64_t elements, DType dtype, int ranks, int group_nodes) {
  const bool is_widened = dtype == DType::kF16 && ranks > group_nodes;
  return ReduceScatterWireBytes(BytesOf(elements, is_widened ? DType::kF32 : dtype), group_nodes);
}

// Elements of this size cross between share domains in a sum over `ranks` of `domains`. Sums of several ranks
// of a domain have the dtype of accumulation.
DType CrossingDType(DType dtype, int ranks, int domains) {
  const bool is_widened = (dtype == DType::kF16 || dtype == DType::kBF16) && ranks > domains;
  return is_widened ? DType::kF32 : dtype;
}

int64_t ReducedOverDomains(int64_t elements, DType dtype, int ranks, int nodes, int domains) {
  return ReduceScatterCrossBytes(BytesOf(elements, CrossingDType(dtype, ranks, domains)), nodes, domains);
}

// Bytes copied into the input of a reduction.
int64_t CopiedIntoReduction(const FlatLayout& layout, const ShardingPolicy& policy) {
  const bool casts = policy.DTypes().gradient_dtype() != policy.reduce_dtype;
  const int64_t narrowed = casts ? layout.gradient_image_elements() : 0;
  return BytesOf(policy.is_zero_copy() ? narrowed : layout.trainable_elements(), policy.reduce_dtype);
}

// Bytes copied out of its result, which becomes or is added to a sum in fp32.
int64_t CopiedOutOfReduction(const ShardingPolicy& policy, int64_t elements) {
  return policy.reduce_dtype != DType::kF32 ? BytesOf(elements, DType::kF32) : 0;
}

StepCosts CostsOfUnshards(const FlatLayout& layout, const ShardingPolicy& policy, const StepShape& shape,
                          int64_t unshards) {
  StepCosts costs;
  // A shared image is cast once a step.
  const int64_t copies = shape.residency == Residency::kPrivate ? unshards : 1;
  costs.copied_bytes = copies * CopiedByUnshard(layout, policy, shape);
  if (shape.shard_size == 1 || shape.residency == Residency::kInPlace) return costs;
  const int64_t bytes = BytesOf(layout.gathered_elements(), policy.param_dtype);
  costs.all_gathers = unshards;
  costs.all_gather_bytes =
      unshards * (bytes - BytesOf(layout.shard_elements(shape.shard_rank), policy.param_dtype));
  const int nodes = shape.shard_group_nodes();
  const int domains = shape.domains_of_consecutive(shape.shard_size);
  costs.wire_bytes = unshards * shape.replicate_size * AllGatherWireBytes(bytes, nodes);
  costs.cross_domain_bytes = unshards * shape.replicate_size *
                             (shape.residency == Residency::kNodeShared
                                  ? SharedGatherCrossBytes(bytes, nodes, domains)
                                  : PrivateGatherCrossBytes(bytes, shape.shard_size, nodes, domains));
  if (IsRanged(layout)) {
    const bool is_in_place = shape.residency == Residency::kPrivate && policy.param_dtype != DType::kF32;
    costs.packed_bytes = unshards * PackedByAllGather(ShardParts(layout, shape), is_in_place,
                                                      policy.param_dtype, shape.slice_bytes);
  }
  return costs;
}

// The kept part, with the shards of the ranks at this rank's place in the regather group, is copied out of
// the image, and into the next gathered buffer, which the other ranks of that group complete.
StepCosts CostsOfRegathers(const FlatLayout& layout, const ShardingPolicy& policy, const StepShape& shape) {
  const int size = policy.reshard_after_forward_size;
  const int64_t times = shape.microbatches;
  const int ranks = shape.shard_size / size;
  const int first = shape.shard_rank % size * ranks;
  const int64_t kept = layout.gathered_offset(first + ranks) - layout.gathered_offset(first);
  int64_t copied_out = kept;
  if (!policy.is_zero_copy()) {
    copied_out = layout.parameter_elements();  // The next image out of its gathered buffer.
    for (int rank = first; rank < first + ranks; ++rank) {
      for (const ShardPiece& piece : layout.Pieces(rank)) copied_out += piece.elements();
    }
  }
  const int64_t bytes = BytesOf(layout.gathered_elements(), policy.param_dtype);
  StepCosts costs;
  costs.all_gathers = times;
  costs.all_gather_bytes = times * (bytes - BytesOf(kept, policy.param_dtype));
  costs.copied_bytes = times * BytesOf(copied_out + kept, policy.param_dtype);
  const int nodes = shape.nodes_of_consecutive(size);
  const int64_t groups = shape.ranks() / size;
  costs.wire_bytes = times * groups * AllGatherWireBytes(bytes, nodes);
  costs.cross_domain_bytes =
      times * groups * PrivateGatherCrossBytes(bytes, size, nodes, shape.domains_of_consecutive(size));
  if (IsRanged(layout)) {
    const RangedGroup group{RegatherRanges(layout, size), shape.nodes_of_consecutive(size),
                            shape.shard_rank % size};
    costs.packed_bytes =
        times * PackedByAllGather(group, /*is_in_place=*/true, policy.param_dtype, shape.slice_bytes);
  }
  return costs;
}

// Elements that this rank updates, and that all replicas update.
struct UpdatedPart {
  int64_t own;
  int64_t all;
};

std::vector<ReplicaSlice> SlicesOf(const FlatLayout& layout, const ShardingPolicy& policy,
                                   const StepShape& shape) {
  const ProcessGroup replicas{"replicate", std::vector<int>(static_cast<size_t>(shape.replicate_size)),
                              shape.replicate_rank};
  return DividedSlices(layout, shape.shard_rank, policy.reduce_dtype, {replicas});
}

UpdatedPart UpdatedPartOf(const FlatLayout& layout, const ShardingPolicy& policy, const StepShape& shape) {
  UpdatedPart part{0, 0};
  for (const ReplicaSlice& slice : SlicesOf(layout, policy, shape)) {
    part.own += slice.own.count;
    part.all += slice.range.count;
  }
  return part;
}

// Gather of updates, once an epoch.
StepCosts CostsOfUpdates(const FlatLayout& layout, const ShardingPolicy& policy, const StepShape& shape) {
  StepCosts costs;
  if (!policy.shard_optimizer_over_replicas || layout.frozen()) return costs;
  const UpdatedPart part = UpdatedPartOf(layout, policy, shape);
  costs.all_gathers = 1;
  costs.all_gather_bytes = BytesOf(part.all - part.own, DType::kF32);
  const int64_t bytes = BytesOf(layout.reduced_elements(), DType::kF32);  // Over all groups of replicas.
  costs.wire_bytes = AllGatherWireBytes(bytes, shape.replicate_group_nodes());
  costs.cross_domain_bytes = PrivateGatherCrossBytes(
      bytes, shape.replicate_size, shape.replicate_group_nodes(), shape.replicate_group_domains());
  const bool master_is_in_image = shape.residency == Residency::kInPlace && policy.param_dtype == DType::kF32;
  if (!IsRanged(layout) || !master_is_in_image) return costs;
  for (const ReplicaSlice& slice : SlicesOf(layout, policy, shape)) {
    const RangedGroup group{ReplicaImageRanges(layout, shape.shard_rank, slice),
                            shape.replicate_group_nodes(), shape.replicate_rank};
    costs.packed_bytes += PackedByAllGather(group, /*is_in_place=*/true, DType::kF32, shape.slice_bytes);
  }
  return costs;
}

void AddReplication(const FlatLayout& layout, const ShardingPolicy& policy, const StepShape& shape,
                    StepCosts& costs) {
  const int64_t times = shape.all_reduces();
  const int nodes = shape.replicate_group_nodes();
  const int domains = shape.replicate_group_domains();
  // Each part has a replicate group of its own.
  const int64_t reduced_over_wires = ReducedOverWires(layout.reduced_elements(), policy.reduce_dtype,
                                                      shape.replicate_size, shape.replicate_group_nodes());
  if (policy.shard_optimizer_over_replicas) {
    const int64_t own = BytesOf(UpdatedPartOf(layout, policy, shape).own, policy.reduce_dtype);
    costs.reduce_scatters += times;
    costs.reduce_scatter_bytes += times * ReduceScatterBytes(own, shape.replicate_size);
    costs.wire_bytes += times * reduced_over_wires;
    costs.cross_domain_bytes += times * ReducedOverDomains(layout.reduced_elements(), policy.reduce_dtype,
                                                           shape.replicate_size, nodes, domains);
    return;
  }
  const int64_t own = BytesOf(layout.reduced_elements(shape.shard_rank), policy.reduce_dtype);
  costs.all_reduces += times;
  costs.all_reduce_bytes += times * AllReduceBytes(own, shape.replicate_size);
  const int64_t gathered_over_wires = AllGatherWireBytes(
      BytesOf(layout.reduced_elements(), policy.reduce_dtype), shape.replicate_group_nodes());
  costs.wire_bytes += times * (reduced_over_wires + gathered_over_wires);
  for (int rank = 0; rank < shape.shard_size; ++rank) {
    const int64_t elements = layout.reduced_elements(rank);
    costs.cross_domain_bytes +=
        times * AllReduceCrossBytes(
                    BytesOf(elements, policy.reduce_dtype),
                    BytesOf(elements, CrossingDType(policy.reduce_dtype, shape.replicate_size, domains)),
                    shape.replicate_size, nodes, domains);
  }
}

StepCosts CostsOfReductions(const FlatLayout& layout, const ShardingPolicy& policy, const StepShape& shape) {
  StepCosts costs;
  const int64_t own_elements = layout.reduced_elements(shape.shard_rank);
  const int64_t own_bytes = BytesOf(own_elements, policy.reduce_dtype);
  if (shape.shard_size > 1) {
    const int64_t times = shape.reduce_scatters();
    costs.reduce_scatters = times;
    costs.reduce_scatter_bytes = times * ReduceScatterBytes(own_bytes, shape.shard_size);
    costs.wire_bytes = times * shape.replicate_size *
                       ReducedOverWires(layout.reduced_elements(), policy.reduce_dtype, shape.shard_size,
                                        shape.shard_group_nodes());
    costs.cross_domain_bytes =
        times * shape.replicate_size *
        ReducedOverDomains(layout.reduced_elements(), policy.reduce_dtype, shape.shard_size,
                           shape.shard_group_nodes(), shape.domains_of_consecutive(shape.shard_size));
    if (IsRanged(layout)) {
      costs.packed_bytes =
          times * PackedByReduceScatter(GradientParts(layout, shape), policy.reduce_dtype, shape.slice_bytes);
    }
  }
  if (shape.replicate_size > 1) AddReplication(layout, policy, shape, costs);
  const int64_t updated =
      policy.shard_optimizer_over_replicas ? UpdatedPartOf(layout, policy, shape).own : own_elements;
  costs.copied_bytes =
      shape.reduce_scatters() * CopiedIntoReduction(layout, policy) +
      (shape.reduce_scatters() - shape.all_reduces()) * CopiedOutOfReduction(policy, own_elements) +
      shape.all_reduces() * CopiedOutOfReduction(policy, updated);
  return costs;
}

}  // namespace

int64_t ReduceScatterBytes(int64_t own_bytes, int ranks) { return own_bytes * (ranks - 1); }
// Counts uneven ranges, which differ by less than a cache line, as even ones, rounded down.
int64_t AllReduceBytes(int64_t bytes, int ranks) { return 2 * bytes * (ranks - 1) / ranks; }

// Every part is sent to each other node once.
int64_t AllGatherWireBytes(int64_t bytes, int nodes) { return bytes * (nodes - 1); }
// Every part receives one partial sum of each other node.
int64_t ReduceScatterWireBytes(int64_t bytes, int nodes) { return bytes * (nodes - 1); }

// Each domain but the one that has a part, or receives it, copies it once.
int64_t SharedGatherCrossBytes(int64_t bytes, int nodes, int domains) { return bytes * (domains - nodes); }
int64_t PrivateGatherCrossBytes(int64_t bytes, int size, int nodes, int domains) {
  return bytes * (size / nodes - size / domains);
}

// Every part is reduced from one sum of each other domain, on each node.
int64_t ReduceScatterCrossBytes(int64_t sum_bytes, int nodes, int domains) {
  return sum_bytes * (domains - nodes);
}
// Then it is written to, or copied into, the outputs of all ranks of other domains.
int64_t AllReduceCrossBytes(int64_t bytes, int64_t sum_bytes, int size, int nodes, int domains) {
  constexpr int64_t kSmallOnNode = 4096;
  constexpr int64_t kSmallBetweenNodes = 64;
  if (bytes <= (nodes == 1 ? kSmallOnNode : kSmallBetweenNodes)) return 0;
  return ReduceScatterCrossBytes(sum_bytes, nodes, domains) +
         PrivateGatherCrossBytes(bytes, size, nodes, domains);
}

int StepShape::nodes() const { return ranks_per_node == 0 ? 1 : ranks() / ranks_per_node; }
int StepShape::nodes_of_consecutive(int count) const {
  return ranks_per_node == 0 ? 1 : std::max(1, count / ranks_per_node);
}
int StepShape::domains_of_consecutive(int count) const {
  return ranks_per_domain == 0 ? nodes_of_consecutive(count) : std::max(1, count / ranks_per_domain);
}
// The group's ranks are `shard_size` apart.
int StepShape::replicate_group_nodes() const { return nodes() / shard_group_nodes(); }
int StepShape::replicate_group_domains() const {
  const int domains = ranks_per_domain == 0 ? nodes() : ranks() / ranks_per_domain;
  return domains / domains_of_consecutive(shard_size);
}

int StepShape::reduce_scatters() const { return gradient_sync == GradientSync::kLast ? 1 : microbatches; }
int StepShape::all_reduces() const { return gradient_sync == GradientSync::kEach ? microbatches : 1; }

StepCosts& StepCosts::operator+=(const StepCosts& other) {
  all_gathers += other.all_gathers;
  reduce_scatters += other.reduce_scatters;
  all_reduces += other.all_reduces;
  all_gather_bytes += other.all_gather_bytes;
  reduce_scatter_bytes += other.reduce_scatter_bytes;
  all_reduce_bytes += other.all_reduce_bytes;
  copied_bytes += other.copied_bytes;
  wire_bytes += other.wire_bytes;
  cross_domain_bytes += other.cross_domain_bytes;
  packed_bytes += other.packed_bytes;
  return *this;
}

bool IsGatheredAgain(int group, int groups, const ShardingPolicy& policy) {
  if (group == 0) return policy.reshard_root_after_forward;
  return policy.reshard_after_forward && group < groups - (1 + policy.PrefetchDepth());
}

StepCosts CostsOfGroup(const FlatLayout& layout, bool is_gathered_again, const ShardingPolicy& policy,
                       const StepShape& shape) {
  if (layout.gathered_elements() == 0) return {};
  const bool keeps_part = is_gathered_again && policy.reshard_after_forward_size > 1;
  const int64_t times = is_gathered_again && !keeps_part ? 2 : 1;
  StepCosts costs = CostsOfUnshards(layout, policy, shape, times * shape.microbatches);
  if (keeps_part) costs += CostsOfRegathers(layout, policy, shape);
  if (!layout.frozen()) costs += CostsOfReductions(layout, policy, shape);
  costs += CostsOfUpdates(layout, policy, shape);
  return costs;
}

StepCosts CostsOfGroups(absl::Span<const FlatLayout> layouts, const ShardingPolicy& policy,
                        const StepShape& shape) {
  const auto groups = static_cast<int>(layouts.size());
  StepCosts costs;
  for (int group = 0; group < groups; ++group) {
    costs += CostsOfGroup(layouts[static_cast<size_t>(group)], IsGatheredAgain(group, groups, policy), policy,
                          shape);
  }
  return costs;
}

StepCosts ForwardCostsOfGroup(const FlatLayout& layout, const ShardingPolicy& policy,
                              const StepShape& shape) {
  if (layout.gathered_elements() == 0) return {};
  StepCosts costs = CostsOfUnshards(layout, policy, shape, 1);
  costs += CostsOfUpdates(layout, policy, shape);
  return costs;
}

}  // namespace weft
