#include "src/comm/phases/domain_reduce.h"

#include <algorithm>
#include <utility>

#include "src/comm/phases/reduce_kernel.h"
#include "src/comm/phases/reduce_phase.h"
#include "weft/core/status.h"

namespace weft {

bool DomainReduce::Applies(const GroupPlacement& placement) {
  const std::vector<NodeSubtree>& subtrees = placement.domain_subtrees();
  return placement.spans_domains() &&
         std::any_of(subtrees.begin(), subtrees.end(), [](const NodeSubtree& s) { return s.count > 1; });
}

DomainReduce::DomainReduce(const OperationContext& context, const CollectivePlan& plan,
                           std::vector<WholeMemory> inputs)
    : plan_(plan),
      inputs_(std::move(inputs)),
      sum_dtype_(AccumulationDType(plan.dtype)),
      piece_elements_(std::max<int64_t>(1, std::min(kMaxPieceBytes, context.options.piece_bytes) /
                                               static_cast<int64_t>(SizeOf(sum_dtype_)))),
      size_(context.placement.size()),
      me_(context.placement.me()) {}

absl::StatusOr<std::unique_ptr<DomainReduce>> DomainReduce::Create(OperationContext& context,
                                                                   const CollectivePlan& plan,
                                                                   std::vector<WholeMemory> inputs) {
  std::unique_ptr<DomainReduce> phase(new DomainReduce(context, plan, std::move(inputs)));
  phase->PlanSources(context.placement);
  WEFT_RETURN_IF_ERROR(phase->PlanProducers(context));
  return phase;
}

int DomainReduce::ProducerOf(const GroupPlacement& placement, const NodeSubtree& subtree, int owner) {
  return subtree.lo + placement.IndexInNode(owner) % subtree.count;
}

void DomainReduce::PlanSources(const GroupPlacement& placement) {
  const std::vector<NodeSubtree>& subtrees = placement.domain_subtrees();
  for (size_t i = 0; i < subtrees.size(); ++i) {
    if (subtrees[i].count == 1 || placement.IsInDomain(subtrees[i].lo)) continue;
    sources_.push_back({static_cast<int>(i), ProducerOf(placement, subtrees[i], me_)});
  }
}

absl::Status DomainReduce::PlanProducers(OperationContext& context) {
  const GroupPlacement& placement = context.placement;
  const std::vector<NodeSubtree>& subtrees = placement.domain_subtrees();
  const NodeSubtree& own = *std::find_if(subtrees.begin(), subtrees.end(), [&](const NodeSubtree& s) {
    return s.lo <= me_ && me_ < s.lo + s.count;
  });
  if (own.count == 1) return absl::OkStatus();
  std::vector<int> owners;
  for (int step = 1; step < size_; ++step) {
    const int owner = (me_ + step) % size_;
    if (!placement.IsInDomain(owner) && ProducerOf(placement, own, owner) == me_) owners.push_back(owner);
  }
  size_t bytes = 0;
  const auto ring_at = [&](std::byte* base) { return SliceMemory{base, SizeOf(sum_dtype_), kRingPieces}; };
  for (const int owner : owners) bytes += ring_at(nullptr).RingBytes(SlicingOf(owner));
  if (bytes > 0) {
    WEFT_ASSIGN_OR_RETURN(rings_, context.scratch.Acquire(bytes));
  }
  std::byte* next = rings_.data();
  for (const int owner : owners) {
    const Slicing slicing = SlicingOf(owner);
    if (slicing.elements == 0) continue;
    std::vector<ReduceStream::Leaf> leaves;
    for (int member = own.lo; member < own.lo + own.count; ++member)
      leaves.push_back(InputLeaf(member, owner));
    ReduceProgram program =
        BuildReduceProgram(own.lo, own.count, [&](int lo, int n) { return n == 1 ? lo - own.lo : -1; });
    producers_.emplace_back(owner,
                            ReduceStream(slicing, std::move(program), std::move(leaves), plan_.reduce,
                                         ReduceTarget{nullptr, sum_dtype_}),
                            ring_at(next));
    const std::optional<NodeAddress> address = context.node.AddressOf(next);
    WEFT_CHECK(address.has_value(), "the engine's scratch lies outside of node memory");
    Announce(context, RingCounter(owner), static_cast<int64_t>(address->offset) + 1, owner);
    next += ring_at(nullptr).RingBytes(slicing);
  }
  return absl::OkStatus();
}

bool DomainReduce::MakeReduce(OperationContext& context) {
  const GroupPlacement& placement = context.placement;
  const bool is_empty = SlicingOf(me_).elements == 0;
  const std::vector<NodeSubtree>& subtrees = placement.domain_subtrees();
  std::vector<ReduceStream::Leaf> leaves;
  std::vector<std::pair<int, int>> first_of_leaf;  // The first member and the count of each leaf's subtree.
  for (const Source& source : sources_) {
    const int64_t offset = CounterOf(context, source.producer, RingCounter(me_));
    if (offset == 0 && !is_empty) return false;
    std::byte* ring = is_empty ? nullptr
                               : context.node.Map({placement.WorldRank(source.producer),
                                                   static_cast<decltype(NodeAddress::offset)>(offset - 1)});
    leaves.push_back({SliceMemory{ring, SizeOf(sum_dtype_), kRingPieces}, sum_dtype_});
    const NodeSubtree& subtree = subtrees[static_cast<size_t>(source.subtree)];
    first_of_leaf.emplace_back(subtree.lo, subtree.count);
  }
  for (const NodeSubtree& subtree : subtrees) {
    if (subtree.count > 1 && !placement.IsInDomain(subtree.lo)) continue;
    for (int member = subtree.lo; member < subtree.lo + subtree.count; ++member) {
      leaves.push_back(InputLeaf(member, me_));
      first_of_leaf.emplace_back(member, 1);
    }
  }
  ReduceProgram program = BuildReduceProgram(0, size_, [&](int lo, int n) {
    const auto leaf = std::find(first_of_leaf.begin(), first_of_leaf.end(), std::pair(lo, n));
    return leaf == first_of_leaf.end() ? -1 : static_cast<int>(leaf - first_of_leaf.begin());
  });
  reduce_.emplace(SlicingOf(me_), std::move(program), std::move(leaves), plan_.reduce,
                  TargetOf(placement, plan_, plan_.output));
  return true;
}

int64_t DomainReduce::CounterOf(const OperationContext& context, int member, int index) {
  return context.node.Counter(context.record->lane, context.placement.WorldRank(member),
                              context.record->descriptor.sequence, index);
}

void DomainReduce::Announce(OperationContext& context, int index, int64_t value, int member) {
  context.node.SetCounter(context.record->lane, context.record->descriptor.sequence, index, value);
  context.node.Ring(context.placement.WorldRank(member));
}

bool DomainReduce::StepProducers(OperationContext& context) {
  bool advanced = false;
  for (Producer& producer : producers_) {
    if (producer.announced < producer.progress.done()) {
      producer.announced = producer.progress.done();
      Announce(context, PiecesCounter(producer.owner), producer.announced, producer.owner);
      advanced = true;
    }
    if (producer.finished()) continue;
    const Slicing& slicing = producer.stream.slicing();
    const int64_t reduced = CounterOf(context, producer.owner, PiecesCounter(producer.owner));
    const int64_t end = std::min(slicing.slices(), reduced + kRingPieces);
    while (producer.progress.issued() < end && producer.progress.outstanding() < kPiecesInFlight) {
      const int64_t piece = producer.progress.Issue();
      producer.stream.Issue(context, piece, producer.ring.At(slicing, piece), &producer);
      advanced = true;
    }
  }
  return advanced;
}

bool DomainReduce::Step(OperationContext& context) {
  bool advanced = StepProducers(context);
  if (!reduce_ && !MakeReduce(context)) return advanced;
  if (announced_ < reduce_->done()) {
    announced_ = reduce_->done();
    context.node.SetCounter(context.record->lane, context.record->descriptor.sequence, PiecesCounter(me_),
                            announced_);
    for (const Source& source : sources_) context.node.Ring(context.placement.WorldRank(source.producer));
    advanced = true;
  }
  if (reduce_->finished()) return advanced;
  int64_t available = SlicingOf(me_).slices();
  for (const Source& source : sources_)
    available = std::min(available, CounterOf(context, source.producer, PiecesCounter(me_)));
  return reduce_->Step(context, available) || advanced;
}

bool DomainReduce::drained() const {
  return complete() && std::all_of(producers_.begin(), producers_.end(),
                                   [](const Producer& producer) { return producer.finished(); });
}

void DomainReduce::AddAwaited(const OperationContext& context, std::set<int>& ranks) const {
  const int64_t reduced = reduce_ ? reduce_->done() : 0;
  for (const Source& source : sources_) {
    if (complete() || CounterOf(context, source.producer, PiecesCounter(me_)) > reduced) continue;
    ranks.insert(context.placement.WorldRank(source.producer));
  }
  for (const Producer& producer : producers_) {
    if (producer.finished()) continue;
    const int64_t read = CounterOf(context, producer.owner, PiecesCounter(producer.owner));
    if (read + kRingPieces <= producer.progress.done())
      ranks.insert(context.placement.WorldRank(producer.owner));
  }
}

}  // namespace weft
