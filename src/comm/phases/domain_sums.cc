#include "src/comm/phases/domain_sums.h"

#include <algorithm>
#include <utility>

#include "src/comm/phases/reduce_kernel.h"
#include "src/comm/phases/reduce_phase.h"
#include "weft/core/status.h"

namespace weft {
namespace {

bool Contains(const NodeSubtree& outer, int member) {
  return outer.lo <= member && member < outer.lo + outer.count;
}

const NodeSubtree& SubtreeOf(const std::vector<NodeSubtree>& subtrees, int member) {
  return *std::find_if(subtrees.begin(), subtrees.end(),
                       [&](const NodeSubtree& subtree) { return Contains(subtree, member); });
}

// The subtree of this node that has a member.
const NodeSubtree& SubtreeOfNode(const GroupPlacement& placement, int member) {
  const std::vector<int>& indices = placement.SubtreesOf(placement.NodeOf(placement.me()));
  const auto subtree = [&](int index) -> const NodeSubtree& {
    return placement.subtrees()[static_cast<size_t>(index)];
  };
  return subtree(*std::find_if(indices.begin(), indices.end(),
                               [&](int index) { return Contains(subtree(index), member); }));
}

}  // namespace

// Partial sum of a subtree of the node whose slices need sums of other domains.
class DomainSums::Partial final : public SliceSource {
 public:
  Partial(DomainSums& sums, int part, int first_member, ReduceStream stream,
          std::vector<size_t> source_of_leaf)
      : sums_(sums),
        part_(part),
        first_member_(first_member),
        stream_(std::move(stream)),
        source_of_leaf_(std::move(source_of_leaf)) {}

  const Slicing& slicing() const override { return stream_.slicing(); }
  DType element_dtype() const override { return stream_.element_dtype(); }
  WireEncoding encoding() const override { return stream_.encoding(); }
  void Issue(OperationContext& /*context*/, int64_t slice, std::byte* target, TaskOwner* owner) override {
    sums_.waiting_.push_back({this, slice, target, owner});
  }

  int part() const { return part_; }
  int first_member() const { return first_member_; }
  // Issues the task of a slice whose sums lie in slot `request` of the rings.
  void Reduce(OperationContext& context, int64_t slice, int64_t request, std::byte* target) {
    const size_t offset = static_cast<size_t>(request % kRequestSlots) * sums_.slot_bytes_;
    for (size_t leaf = 0; leaf < source_of_leaf_.size(); ++leaf)
      stream_.MoveLeaf(leaf, sums_.sources_[source_of_leaf_[leaf]].request_ring + offset);
    stream_.IssueAs(context, request, slice, target, &sums_);
  }

 private:
  DomainSums& sums_;
  int part_;
  int first_member_;  // Of the subtree.
  ReduceStream stream_;
  std::vector<size_t> source_of_leaf_;  // Of the first leaves, which are sums.
};

bool DomainSums::Applies(const GroupPlacement& placement) {
  if (!placement.spans_domains()) return false;
  const std::vector<NodeSubtree>& subtrees = placement.domain_subtrees();
  const std::vector<int>& peers = placement.local_peers();
  return std::any_of(subtrees.begin(), subtrees.end(), [&](const NodeSubtree& subtree) {
    if (subtree.count == 1 || !placement.IsLocal(subtree.lo)) return false;
    const auto reads = [&](int rank) { return IsRead(placement, subtree, rank); };
    return reads(placement.me()) || std::any_of(peers.begin(), peers.end(), reads);
  });
}

int DomainSums::CountersOf(const GroupPlacement& placement) {
  return placement.size() + 2 * placement.local_size() + kFirstWord + static_cast<int>(kRequestSlots);
}

DomainSums::DomainSums(const OperationContext& context, const CollectivePlan& plan,
                       std::vector<WholeMemory> inputs, int64_t slice_elements)
    : plan_(plan),
      inputs_(std::move(inputs)),
      sum_dtype_(AccumulationDType(plan.dtype)),
      slice_elements_(slice_elements),
      size_(context.placement.size()),
      me_(context.placement.me()),
      slot_bytes_(SliceMemory{nullptr, SizeOf(sum_dtype_)}.SlotBytes(
          {*std::max_element(plan.parts.counts.begin(), plan.parts.counts.end()), slice_elements})),
      request_slots_(context.placement.spans_nodes() ? kRequestSlots : 0),
      awaits_room_(context.wire.rules().domain_rings_await_reader),
      awaits_sums_(context.wire.rules().domain_readers_await_sums),
      requests_(static_cast<size_t>(request_slots_)) {}

absl::StatusOr<std::unique_ptr<DomainSums>> DomainSums::Create(OperationContext& context,
                                                               const CollectivePlan& plan,
                                                               std::vector<WholeMemory> inputs,
                                                               int64_t slice_elements) {
  std::unique_ptr<DomainSums> sums(new DomainSums(context, plan, std::move(inputs), slice_elements));
  sums->PlanSources(context.placement);
  WEFT_RETURN_IF_ERROR(sums->PlanProducers(context));
  return sums;
}

int DomainSums::ProducerOf(const GroupPlacement& placement, const NodeSubtree& subtree, int reader) {
  return subtree.lo + placement.IndexInNode(reader) % subtree.count;
}

bool DomainSums::IsRead(const GroupPlacement& placement, const NodeSubtree& subtree, int reader) {
  return subtree.count > 1 && !placement.AreInOneDomain(subtree.lo, reader);
}

std::vector<int> DomainSums::ReadersOf(const GroupPlacement& placement, int producer) {
  const NodeSubtree& subtree = SubtreeOf(placement.domain_subtrees(), producer);
  std::vector<int> readers;
  for (const int member : placement.MembersOf(placement.NodeOf(placement.me()))) {
    if (IsRead(placement, subtree, member) && ProducerOf(placement, subtree, member) == producer)
      readers.push_back(member);
  }
  return readers;
}

ReduceStream::Leaf DomainSums::InputLeaf(const GroupPlacement& placement, int member, int part) const {
  return {PartMemory(plan_.parts, inputs_[static_cast<size_t>(member)], part, SizeOf(plan_.dtype)),
          plan_.dtype, !placement.IsInDomain(member)};
}

void DomainSums::PlanSources(const GroupPlacement& placement) {
  for (const NodeSubtree& subtree : placement.domain_subtrees()) {
    if (!placement.IsLocal(subtree.lo) || !IsRead(placement, subtree, me_)) continue;
    sources_.push_back({subtree, ProducerOf(placement, subtree, me_)});
  }
}

absl::Status DomainSums::PlanProducers(OperationContext& context) {
  const GroupPlacement& placement = context.placement;
  const std::vector<int> readers = ReadersOf(placement, me_);
  if (readers.empty()) return absl::OkStatus();
  subtree_ = SubtreeOf(placement.domain_subtrees(), me_);
  for (const int reader : readers) {
    Producer& producer = producers_.emplace_back(Producer{reader, {}, {}});
    producer.own.count = SlicingOf(reader).slices();
  }
  CountRequests(placement);
  if (rings_bytes() == 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(rings_, context.scratch.Acquire(readers.size() * rings_bytes()));
  std::byte* next = rings_.data();
  for (Producer& producer : producers_) {
    producer.own.base = next;
    producer.requests.base = next + static_cast<size_t>(kOwnSlots) * slot_bytes_;
    next += rings_bytes();
  }
  const std::optional<NodeAddress> address = context.node.AddressOf(rings_.data());
  WEFT_CHECK(address.has_value(), "the engine's scratch lies outside of node memory");
  context.Announce(RingsCounter(placement), static_cast<int64_t>(address->offset) + 1, readers);
  return absl::OkStatus();
}

// A reader requests each slice of the parts that it sends to other nodes, for each subtree of the node in
// which it reads sums.
void DomainSums::CountRequests(const GroupPlacement& placement) {
  if (!placement.spans_nodes()) return;
  const int node = placement.NodeOf(me_);
  std::map<int, int64_t> slices_of;  // By reader.
  for (int part = 0; part < size_; ++part) {
    if (!placement.IsLocal(part)) slices_of[placement.PartLeader(node, part)] += SlicingOf(part).slices();
  }
  for (Producer& producer : producers_) {
    const auto reads_in = [&](const NodeSubtree& of_node) {
      return placement.IsLocal(of_node.lo) &&
             std::any_of(placement.domain_subtrees().begin(), placement.domain_subtrees().end(),
                         [&](const NodeSubtree& sum) {
                           return Contains(of_node, sum.lo) && IsRead(placement, sum, producer.reader);
                         });
    };
    producer.requests.count =
        slices_of[producer.reader] *
        std::count_if(placement.subtrees().begin(), placement.subtrees().end(), reads_in);
  }
}

bool DomainSums::FindRings(const OperationContext& context) {
  const GroupPlacement& placement = context.placement;
  if (found_rings_ || rings_bytes() == 0) return found_rings_ = true;
  for (const Source& source : sources_) {
    if (context.CounterOf(source.producer, RingsCounter(placement)) == 0) return false;
  }
  for (Source& source : sources_) {
    const int64_t offset = context.CounterOf(source.producer, RingsCounter(placement)) - 1;
    std::byte* rings = context.node.Map(
        {placement.BootstrapRank(source.producer), static_cast<decltype(NodeAddress::offset)>(offset)});
    const std::vector<int> readers = ReadersOf(placement, source.producer);
    const auto place = std::find(readers.begin(), readers.end(), me_) - readers.begin();
    source.own_ring = rings + static_cast<size_t>(place) * rings_bytes();
    source.request_ring = source.own_ring + static_cast<size_t>(kOwnSlots) * slot_bytes_;
  }
  return found_rings_ = true;
}

std::optional<ReduceStream::Leaf> DomainSums::LeafOf(const GroupPlacement& placement, int lo, int n) const {
  for (const Source& source : sources_) {
    if (source.subtree.lo != lo || source.subtree.count != n) continue;
    SliceMemory ring{source.own_ring, SizeOf(sum_dtype_), kOwnSlots};
    ring.window = SliceMemory::Window{0, 1, slot_bytes_};
    return ReduceStream::Leaf{ring, sum_dtype_, /*crosses_domains=*/true};
  }
  if (n == 1) return InputLeaf(placement, lo, me_);
  return std::nullopt;
}

std::unique_ptr<SliceSource> DomainSums::MakePartial(const OperationContext& context,
                                                     const NodeSubtree& subtree, int part,
                                                     const ReduceTarget& target) {
  std::vector<ReduceStream::Leaf> leaves;
  std::vector<size_t> source_of_leaf;
  std::map<std::pair<int, int>, int> number_of;  // By the first member and the count of a leaf's subtree.
  for (size_t i = 0; i < sources_.size(); ++i) {
    const NodeSubtree& sum = sources_[i].subtree;
    if (!Contains(subtree, sum.lo)) continue;
    number_of[{sum.lo, sum.count}] = static_cast<int>(leaves.size());
    source_of_leaf.push_back(i);
    leaves.push_back(
        {{nullptr, SizeOf(sum_dtype_), /*ring_slices=*/1}, sum_dtype_, /*crosses_domains=*/true});
  }
  ReduceProgram program = BuildReduceProgram(subtree.lo, subtree.count, [&](int lo, int n) {
    if (const auto it = number_of.find({lo, n}); it != number_of.end()) return it->second;
    if (n > 1) return -1;
    leaves.push_back(InputLeaf(context.placement, lo, part));
    return number_of[{lo, n}] = static_cast<int>(leaves.size()) - 1;
  });
  ReduceStream stream(SlicingOf(part), std::move(program), std::move(leaves), plan_.reduce, target);
  stream.CountCrossing(context);
  if (source_of_leaf.empty()) return std::make_unique<ReduceStream>(std::move(stream));
  return std::make_unique<Partial>(*this, part, subtree.lo, std::move(stream), std::move(source_of_leaf));
}

int64_t DomainSums::available(const OperationContext& context) const {
  int64_t slices = kAllSlices;
  if (!awaits_sums_) return slices;
  const int counter = OwnCounter(context.placement, me_);
  for (const Source& source : sources_)
    slices = std::min(slices, context.CounterOf(source.producer, counter));
  return slices;
}

bool DomainSums::AnnounceReduced(OperationContext& context, int64_t slices) {
  if (slices <= reduced_) return false;
  reduced_ = slices;
  context.SetCounter(OwnCounter(context.placement, me_), slices);
  for (const Source& source : sources_) context.node.Ring(context.placement.BootstrapRank(source.producer));
  return true;
}

int64_t DomainSums::ReducedBy(const OperationContext& context, int member) const {
  return context.CounterOf(member, OwnCounter(context.placement, member));
}

ReduceStream& DomainSums::SumOf(const GroupPlacement& placement, Producer& producer, int part) {
  const auto found = producer.sums.find(part);
  if (found != producer.sums.end()) return found->second;
  std::vector<ReduceStream::Leaf> leaves;
  for (int member = subtree_->lo; member < subtree_->lo + subtree_->count; ++member)
    leaves.push_back(InputLeaf(placement, member, part));
  ReduceProgram program = ReduceProgramOfRanks(subtree_->lo, subtree_->count);
  ReduceStream sum(SlicingOf(part), std::move(program), std::move(leaves), plan_.reduce,
                   ReduceTarget{nullptr, sum_dtype_});
  return producer.sums.emplace(part, std::move(sum)).first->second;
}

bool DomainSums::Announce(OperationContext& context, Ring& ring, int counter, int reader) {
  if (ring.announced == ring.progress.done()) return false;
  ring.announced = ring.progress.done();
  context.Announce(counter, ring.announced, {reader});
  return true;
}

bool DomainSums::StepOwnRing(OperationContext& context, Producer& producer) {
  Ring& ring = producer.own;
  bool advanced = Announce(context, ring, OwnCounter(context.placement, producer.reader), producer.reader);
  if (ring.progress.issued() == ring.count) return advanced;
  const int64_t room = ReducedBy(context, producer.reader) + kOwnSlots;
  const int64_t end = awaits_room_ ? std::min(ring.count, room) : ring.count;
  while (ring.progress.issued() < end && ring.progress.outstanding() < kPiecesInFlight) {
    const int64_t slice = ring.progress.Issue();
    std::byte* slot = ring.base + static_cast<size_t>(slice % kOwnSlots) * slot_bytes_;
    SumOf(context.placement, producer, producer.reader).Issue(context, slice, slot, &ring);
    advanced = true;
  }
  return advanced;
}

int64_t DomainSums::WordOf(const Partial& partial, int64_t slice) const {
  return (slice * size_ + partial.first_member()) * size_ + partial.part();
}

bool DomainSums::StepRequestRing(OperationContext& context, Producer& producer) {
  const GroupPlacement& placement = context.placement;
  Ring& ring = producer.requests;
  bool advanced = Announce(context, ring, ServedCounter(placement, producer.reader), producer.reader);
  if (ring.progress.issued() == ring.count) return advanced;
  const int64_t end = context.CounterOf(producer.reader, RequestCounter(placement));
  while (ring.progress.issued() < end && ring.progress.outstanding() < kPiecesInFlight) {
    const int64_t request = ring.progress.Issue();
    const int64_t word = context.CounterOf(producer.reader, WordCounter(placement, request));
    const int part = static_cast<int>(word % size_);
    const int first_member = static_cast<int>(word / size_ % size_);
    const int64_t slice = word / size_ / size_;
    advanced = true;
    if (!Contains(SubtreeOfNode(placement, first_member), subtree_->lo)) {
      ring.progress.Finish(request);  // Another subtree of the node.
      continue;
    }
    std::byte* slot = ring.base + static_cast<size_t>(request % kRequestSlots) * slot_bytes_;
    SumOf(context.placement, producer, part).IssueAs(context, request, slice, slot, &ring);
  }
  return advanced;
}

bool DomainSums::StepRequests(OperationContext& context) {
  bool advanced = false;
  const GroupPlacement& placement = context.placement;
  while (!waiting_.empty() && request_progress_.issued() < request_progress_.done() + request_slots_) {
    const int64_t number = request_progress_.Issue();
    const Request& request = requests_[static_cast<size_t>(number % kRequestSlots)] = waiting_.front();
    waiting_.pop_front();
    context.SetCounter(WordCounter(placement, number), WordOf(*request.partial, request.slice));
    advanced = true;
  }
  if (advanced) {
    context.SetCounter(RequestCounter(placement), request_progress_.issued());
    for (const Source& source : sources_) context.node.Ring(placement.BootstrapRank(source.producer));
  }
  int64_t served = request_progress_.issued();
  for (const Source& source : sources_) {
    if (pushed_ == served || !awaits_sums_) break;
    served = std::min(served, context.CounterOf(source.producer, ServedCounter(placement, me_)));
  }
  for (; pushed_ < served; ++pushed_) {
    const Request& request = requests_[static_cast<size_t>(pushed_ % kRequestSlots)];
    request.partial->Reduce(context, request.slice, pushed_, request.target);
    advanced = true;
  }
  return advanced;
}

void DomainSums::OnTaskDone(int64_t request) {
  const Request done = requests_[static_cast<size_t>(request % kRequestSlots)];
  request_progress_.Finish(request);
  done.owner->OnTaskDone(done.slice);
}

bool DomainSums::Step(OperationContext& context) {
  bool advanced = StepRequests(context);
  for (Producer& producer : producers_) {
    advanced |= StepOwnRing(context, producer);
    advanced |= StepRequestRing(context, producer);
  }
  return advanced;
}

bool DomainSums::finished() const {
  return std::all_of(producers_.begin(), producers_.end(), [](const Producer& producer) {
    return producer.own.announced == producer.own.count &&
           producer.requests.announced == producer.requests.count;
  });
}

void DomainSums::AddAwaited(const OperationContext& context, std::set<int>& ranks) const {
  const GroupPlacement& placement = context.placement;
  const bool needs_own = reduced_ < SlicingOf(me_).slices();
  for (const Source& source : sources_) {
    const bool has_own = context.CounterOf(source.producer, OwnCounter(placement, me_)) > reduced_;
    const bool has_served = context.CounterOf(source.producer, ServedCounter(placement, me_)) > pushed_;
    const bool needs_served = pushed_ < request_progress_.issued();
    if ((needs_own && !has_own) || (needs_served && !has_served))
      ranks.insert(placement.BootstrapRank(source.producer));
  }
  for (const Producer& producer : producers_) {
    const bool has_room = ReducedBy(context, producer.reader) + kOwnSlots > producer.own.progress.done();
    const bool awaits_own = producer.own.announced < producer.own.count && !has_room;
    const bool awaits_request =
        producer.requests.announced < producer.requests.count &&
        context.CounterOf(producer.reader, RequestCounter(placement)) == producer.requests.progress.issued();
    if (awaits_own || awaits_request) ranks.insert(placement.BootstrapRank(producer.reader));
  }
}

}  // namespace weft
