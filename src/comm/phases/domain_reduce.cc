#include "src/comm/phases/domain_reduce.h"

#include <algorithm>
#include <map>
#include <utility>

#include "src/comm/phases/reduce_phase.h"
#include "weft/core/status.h"

namespace weft {

DomainReduce::DomainReduce(const OperationContext& context, const CollectivePlan& plan, Memory memory)
    : plan_(plan),
      memory_(std::move(memory)),
      piece_elements_(std::max<int64_t>(1, std::min(kMaxRingPieceBytes, context.options.piece_bytes) /
                                               static_cast<int64_t>(SizeOf(AccumulationDType(plan.dtype))))),
      me_(context.placement.me()) {
  if (memory_.copies.empty()) return;
  for (const int peer : context.placement.local_peers()) {
    if (SlicingOf(peer).elements > 0) awaited_.push_back(peer);
  }
}

absl::StatusOr<std::unique_ptr<DomainReduce>> DomainReduce::Create(OperationContext& context,
                                                                   const CollectivePlan& plan,
                                                                   Memory memory) {
  std::unique_ptr<DomainReduce> phase(new DomainReduce(context, plan, std::move(memory)));
  WEFT_ASSIGN_OR_RETURN(phase->sums_,
                        DomainSums::Create(context, plan, phase->memory_.inputs, phase->piece_elements_));
  return phase;
}

void DomainReduce::MakeReduce(const OperationContext& context) {
  const GroupPlacement& placement = context.placement;
  std::vector<ReduceStream::Leaf> leaves;
  std::map<std::pair<int, int>, int> number_of;  // By the first member and the count of a leaf's subtree.
  ReduceProgram program = BuildReduceProgram(0, placement.size(), [&](int lo, int n) {
    if (const auto it = number_of.find({lo, n}); it != number_of.end()) return it->second;
    const std::optional<ReduceStream::Leaf> leaf = sums_->LeafOf(placement, lo, n);
    if (!leaf) return -1;
    leaves.push_back(*leaf);
    return number_of[{lo, n}] = static_cast<int>(leaves.size()) - 1;
  });
  ReduceTarget target = TargetOf(placement, plan_, memory_.output);
  target.copies.assign(memory_.copies.begin(), memory_.copies.end());
  reduce_.emplace(SlicingOf(me_), std::move(program), std::move(leaves), plan_.reduce, std::move(target));
  if (!memory_.copies.empty()) reduce_->SetCrossingOutputs(placement.local_size() - placement.domain_size());
  reduce_->CountCrossing(context);
}

bool DomainReduce::StepOwnPart(OperationContext& context) {
  if (!reduce_) {
    if (!sums_->FindRings(context)) return false;
    MakeReduce(context);
  }
  bool advanced = false;
  if (sums_->AnnounceReduced(context, reduce_->done())) {
    reduced_ = reduce_->done();
    advanced = true;
    if (!memory_.copies.empty() && reduce_->finished()) context.RingLocalPeers();
  }
  if (reduce_->finished()) return advanced;
  return reduce_->Step(context, sums_->available(context)) || advanced;
}

bool DomainReduce::FindCompleteParts(const OperationContext& context) {
  return std::erase_if(awaited_, [&](int member) {
           return sums_->ReducedBy(context, member) == SlicingOf(member).slices();
         }) > 0;
}

bool DomainReduce::Step(OperationContext& context) {
  const bool summed = sums_->Step(context);
  const bool reduced = StepOwnPart(context);
  return FindCompleteParts(context) || reduced || summed;
}

void DomainReduce::AddAwaited(const OperationContext& context, std::set<int>& ranks) const {
  sums_->AddAwaited(context, ranks);
  for (const int member : awaited_) ranks.insert(context.placement.BootstrapRank(member));
}

}  // namespace weft
