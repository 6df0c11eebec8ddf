// Reduce-scatter within a node of several share domains: sums of each domain first, then over domains.
//
// Note [Domain sums]
// Problem: if the owner of a part read the inputs of all ranks, every input would cross the link between
// domains as often as a domain has ranks.
// Rule: for each maximal subtree of the reduction whose ranks are in one domain, one of them, the *producer*
// for the part, reduces their inputs in the dtype of accumulation. It writes the sum into a ring in its own
// memory, piece by piece, and publishes the ring's address and the number of pieces. The owner reads the sums
// of other domains from these rings and the inputs of its own domain where they lie, and publishes how many
// pieces it has reduced. A producer writes a piece once the owner has reduced the one before it in the ring.
// Why it suffices: sums of subtrees are not rounded, so the bits are those of one step. A ring always has
// room for the next piece that its owner needs, so no rank waits in a circle. Rings live until the operation
// is *released*, which is after every owner has read them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <absl/status/statusor.h>

#include "src/comm/phases/collective_plan.h"
#include "src/comm/phases/operation.h"
#include "src/comm/phases/streams.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

class DomainReduce {
 public:
  // True if a domain of the group can add up inputs before they cross to another one.
  // REQUIRES: the group is on one node.
  static bool Applies(const GroupPlacement& placement);

  // `inputs`: by group rank. REQUIRES: Applies; all ranks of the group have published the operation.
  // Errors: kResourceExhausted (no scratch for the rings).
  static absl::StatusOr<std::unique_ptr<DomainReduce>> Create(OperationContext& context,
                                                              const CollectivePlan& plan,
                                                              std::vector<WholeMemory> inputs);
  // Not copyable: tasks hold pointers to the streams.
  DomainReduce(const DomainReduce&) = delete;
  DomainReduce& operator=(const DomainReduce&) = delete;

  // Advances. Returns true if anything moved.
  bool Step(OperationContext& context);
  // This rank's part is reduced, and its producers know.
  bool complete() const { return reduce_ && reduce_->finished() && announced_ == reduce_->done(); }
  // The phase is complete, and this rank has produced all sums for owners of other domains.
  bool drained() const;
  // Adds the bootstrap ranks that the phase waits for.
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const;

 private:
  static constexpr int64_t kRingPieces = 4;
  static constexpr int64_t kMaxPieceBytes = int64_t{128} * 1024;

  // Sum of this rank's subtree for a part of another domain.
  struct Producer final : TaskOwner {
    Producer(int part_owner, ReduceStream sum, SliceMemory memory)
        : owner(part_owner), stream(std::move(sum)), ring(memory) {}
    void OnTaskDone(int64_t piece) override { progress.Finish(piece); }
    bool finished() const { return announced == stream.slicing().slices(); }

    int owner;  // Group rank.
    ReduceStream stream;
    SliceMemory ring;
    PrefixCounter progress;
    int64_t announced = 0;  // Pieces that the owner knows of.
  };
  // Sum of a subtree of another domain, for this rank's part.
  struct Source {
    int subtree;
    int producer;  // Group rank.
  };

  DomainReduce(const OperationContext& context, const CollectivePlan& plan, std::vector<WholeMemory> inputs);
  absl::Status PlanProducers(OperationContext& context);
  void PlanSources(const GroupPlacement& placement);
  // The rank that adds up a subtree for the part of `owner`.
  static int ProducerOf(const GroupPlacement& placement, const NodeSubtree& subtree, int owner);
  // Makes the reduction of this rank's part, once all producers have published their rings.
  bool MakeReduce(OperationContext& context);
  bool StepProducers(OperationContext& context);

  // Counters. A producer publishes the pieces in its ring for `owner`, and the ring's offset in its segment
  // plus one. An owner publishes the pieces that it has reduced, under its own number.
  static int PiecesCounter(int owner) { return owner; }
  int RingCounter(int owner) const { return size_ + owner; }
  static int64_t CounterOf(const OperationContext& context, int member, int index);
  static void Announce(OperationContext& context, int index, int64_t value, int member);

  Slicing SlicingOf(int member) const {
    return {plan_.parts.counts[static_cast<size_t>(member)], piece_elements_};
  }
  ReduceStream::Leaf InputLeaf(int member, int part) const {
    return {PartMemory(plan_.parts, inputs_[static_cast<size_t>(member)], part, SizeOf(plan_.dtype)),
            plan_.dtype};
  }

  const CollectivePlan plan_;
  const std::vector<WholeMemory> inputs_;
  const DType sum_dtype_;
  const int64_t piece_elements_;
  const int size_;
  const int me_;
  Buffer rings_;
  std::deque<Producer> producers_;  // A deque: tasks hold pointers to the producers.
  std::vector<Source> sources_;
  std::optional<ReduceStream> reduce_;
  int64_t announced_ = 0;  // Reduced pieces that the producers know of.
};

}  // namespace weft
