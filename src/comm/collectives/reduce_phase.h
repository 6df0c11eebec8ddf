// Reduces every rank's part over all ranks, each part by its owner: the whole of a reduce-scatter, and the
// first half of an all-reduce. See Note [Canonical tree] for the order of additions.
//
// Within the node the owner reads its part straight out of its peers' inputs. Of another node it needs one
// partial for each of that node's maximal subtrees, which an agent there evaluates when asked.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <absl/status/statusor.h>

#include "src/comm/collectives/collective_plan.h"
#include "src/comm/collectives/sends.h"
#include "src/comm/collectives/streams.h"

namespace weft {

class ReducePhase {
 public:
  struct Memory {
    std::vector<const std::byte*> inputs;  // By group rank: whole inputs; null for ranks of other nodes.
    std::byte* output;                     // This rank's part,
    std::vector<std::byte*> copies;        // and where else on this node it goes.
  };
  // Errors: kResourceExhausted (no scratch for what other nodes will send).
  static absl::StatusOr<std::unique_ptr<ReducePhase>> Create(const OperationContext& context,
                                                             const CollectivePlan& plan,
                                                             int64_t slice_elements, const Memory& memory);
  // Streams are named by address.
  ReducePhase(const ReducePhase&) = delete;
  ReducePhase& operator=(const ReducePhase&) = delete;

  absl::StatusOr<bool> Step(OperationContext& context);
  int64_t done() const { return reduce_->done(); }  // Slices of the own part.
  bool complete() const { return reduce_->finished(); }
  bool drained() const;
  void AddAwaited(std::set<int>& ranks) const;

 private:
  ReducePhase(const OperationContext& context, const CollectivePlan& plan, int64_t slice_elements,
              Memory memory);
  absl::Status PlanOwnPart(const OperationContext& context);
  void PlanPartials(const OperationContext& context);
  absl::StatusOr<bool> StepReceives(OperationContext& context);
  Slicing SlicingOf(int member) const {
    return {plan_.parts.counts[static_cast<size_t>(member)], slice_elements_};
  }
  SliceMemory PartOf(int owner, int member) const;

  const CollectivePlan plan_;
  const int64_t slice_elements_;
  const Memory memory_;
  int64_t ring_slices_ = 0;             // Of each partial in
  Buffer ring_;                         // what other nodes' partials land in.
  std::deque<ReceiveStream> receives_;  // One for each of their subtrees.
  std::optional<ReduceStream> reduce_;
  ScratchSlots slots_;
  Sends partials_;  // That of one rank, uncompressed, is its input as it is.
};

// What a part is reduced to: an average is scaled, and results too large for the caches go around them.
ReduceTarget TargetOf(const GroupPlacement& placement, const CollectivePlan& plan, std::byte* output);

// The dtype in which partials travel: wide, but for bf16, where the wire is to be halved.
DType PartialDType(DType dtype);

}  // namespace weft
