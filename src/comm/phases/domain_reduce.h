// Reduce-scatter or all-reduce within a node of several share domains: sums of each domain first, then over
// domains. See Note [Domain sums].
//
// In place is safe: the owner of a part overwrites a piece of the inputs only when it reduces the piece, and
// the sums of the piece are ready then.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <absl/status/statusor.h>

#include "src/comm/phases/collective_plan.h"
#include "src/comm/phases/domain_sums.h"
#include "src/comm/phases/operation.h"
#include "src/comm/phases/streams.h"

namespace weft {

class DomainReduce {
 public:
  struct Memory {
    std::vector<WholeMemory> inputs;  // By group rank.
    std::byte* output;                // Target of this rank's part.
    std::vector<std::byte*> copies;   // All-reduce: its targets in the outputs of all other ranks.
  };
  // REQUIRES: the group is on one node; DomainSums::Applies; all its ranks have published the operation.
  // Errors: kResourceExhausted (no scratch for the rings).
  static absl::StatusOr<std::unique_ptr<DomainReduce>> Create(OperationContext& context,
                                                              const CollectivePlan& plan, Memory memory);
  // Not copyable: tasks hold pointers to the streams.
  DomainReduce(const DomainReduce&) = delete;
  DomainReduce& operator=(const DomainReduce&) = delete;

  // Advances. Returns true if anything moved.
  bool Step(OperationContext& context);
  // This rank's result is there, and its producers know.
  bool complete() const { return reduced_ == SlicingOf(me_).slices() && awaited_.empty(); }
  // The phase is complete, and this rank has produced all sums for other readers.
  bool drained() const { return complete() && sums_->finished(); }
  // Adds the bootstrap ranks that the phase waits for.
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const;

 private:
  DomainReduce(const OperationContext& context, const CollectivePlan& plan, Memory memory);
  void MakeReduce(const OperationContext& context);
  bool StepOwnPart(OperationContext& context);
  bool FindCompleteParts(const OperationContext& context);

  Slicing SlicingOf(int member) const {
    return {plan_.parts.counts[static_cast<size_t>(member)], piece_elements_};
  }

  const CollectivePlan plan_;
  const Memory memory_;
  const int64_t piece_elements_;
  const int me_;
  std::unique_ptr<DomainSums> sums_;
  std::optional<ReduceStream> reduce_;  // Once the rings are known.
  int64_t reduced_ = 0;                 // Pieces of which other ranks know.
  std::vector<int> awaited_;            // All-reduce: members whose parts are not complete.
};

}  // namespace weft
