// Sums over the inputs of a share domain, which the ranks of other domains of the node reduce in place of
// these inputs.
//
// Note [Domain sums]
// Problem: if the rank that reduces a part read the inputs of all ranks of its node, every input would cross
// the link between domains as often as a domain has ranks.
// Rule: each part has one *reader* on a node: its owner, or the rank that sends the node's partial sums to
// the owner. For each maximal subtree of the reduction whose ranks are in one domain, one of them, the
// *producer* for the reader, reduces their inputs in the dtype of accumulation. It writes the sums slice by
// slice into rings in its own memory, and publishes how many it has written. The reader reads the sums of
// other domains from these rings, and the inputs of its own domain where they lie.
//   A producer has two rings for a reader. One is for the reader's own part, in the order of its slices; the
// reader publishes how many it has reduced. The other is for parts of other nodes, in the order of
// *requests*, which the reader publishes when an owner gives credits. A slot is written again once it has
// been reduced.
// Why it suffices: sums of subtrees are not rounded, so the bits are those of one step. The first ring has
// room for the next slice that its reader needs. A request has a credit and a slot for the partial sum, and
// serving it takes inputs alone, so all requests are served in order. No rank waits in a circle. In one ring,
// slices of the reader's own part, which wait for other nodes, could fill the slots of requests, for which
// those nodes wait. Rings live until the operation is *released*, which is after every reader has read them.
// Their size depends on the ranks of a node, not on the number of nodes.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
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

class DomainSums final : private TaskOwner {
 public:
  // True if some rank of the caller's node reads sums of another domain.
  static bool Applies(const GroupPlacement& placement);
  // Progress counters of a lane on this group, if sums are used. Those below `placement.size()` belong to the
  // phases.
  static int CountersOf(const GroupPlacement& placement);

  // `inputs`: by group rank. REQUIRES: Applies; all ranks of the node have published the operation.
  // `slice_elements` is the same on all ranks.
  // Errors: kResourceExhausted (no scratch for the rings).
  static absl::StatusOr<std::unique_ptr<DomainSums>> Create(OperationContext& context,
                                                            const CollectivePlan& plan,
                                                            std::vector<WholeMemory> inputs,
                                                            int64_t slice_elements);
  // Not copyable: tasks hold pointers to it.
  DomainSums(const DomainSums&) = delete;
  DomainSums& operator=(const DomainSums&) = delete;

  // Returns true once all producers of this rank have published their rings.
  bool FindRings(const OperationContext& context);

  // REQUIRES for the following: FindRings has returned true.

  // The leaf of this rank's own part that holds the domain subtree T(lo, n): its ring, or the input of a
  // rank. Nothing if the subtree is to be split further.
  std::optional<ReduceStream::Leaf> LeafOf(const GroupPlacement& placement, int lo, int n) const;
  // Slices of this rank's own part whose sums it may read.
  int64_t available(const OperationContext& context) const;
  // Publishes the slices of the own part that this rank has reduced. Returns true if there are new ones.
  bool AnnounceReduced(OperationContext& context, int64_t slices);
  // Slices of its own part that a rank of this node has reduced.
  int64_t ReducedBy(const OperationContext& context, int member) const;
  // Partial sum of a subtree of this node for a part of another node. `target` has dtype and encoding.
  std::unique_ptr<SliceSource> MakePartial(const OperationContext& context, const NodeSubtree& subtree,
                                           int part, const ReduceTarget& target);

  // Advances. Returns true if anything moved.
  bool Step(OperationContext& context);
  // This rank has produced all sums for other readers.
  bool finished() const;
  // Adds the bootstrap ranks for which this rank waits as a producer, or for sums of its own part.
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const;

 private:
  static constexpr int64_t kOwnSlots = 4;
  static constexpr int64_t kRequestSlots = 8;
  static constexpr int kFirstWord = 2;  // After the counters of the rings and of requests.

  // One ring of this rank.
  struct Ring final : TaskOwner {
    void OnTaskDone(int64_t slot) override { progress.Finish(slot); }

    std::byte* base = nullptr;
    PrefixCounter progress;
    int64_t announced = 0;  // Sums that the reader knows of.
    int64_t count = 0;      // Sums in all.
  };
  // The sums of this rank's domain subtree for one reader.
  struct Producer {
    int reader;  // Group rank.
    Ring own;
    Ring requests;
    std::map<int, ReduceStream> sums = {};  // By part.
  };
  // A subtree of another domain whose sums this rank reads.
  struct Source {
    NodeSubtree subtree;
    int producer;  // Group rank.
    std::byte* own_ring = nullptr;
    std::byte* request_ring = nullptr;
  };
  class Partial;
  struct Request {
    Partial* partial;
    int64_t slice;
    std::byte* target;
    TaskOwner* owner;
  };

  DomainSums(const OperationContext& context, const CollectivePlan& plan, std::vector<WholeMemory> inputs,
             int64_t slice_elements);
  void PlanSources(const GroupPlacement& placement);
  absl::Status PlanProducers(OperationContext& context);
  void CountRequests(const GroupPlacement& placement);

  // The rank that adds up a domain subtree for a reader.
  static int ProducerOf(const GroupPlacement& placement, const NodeSubtree& subtree, int reader);
  // True if the reader reads the sum of a domain subtree of its node.
  static bool IsRead(const GroupPlacement& placement, const NodeSubtree& subtree, int reader);
  // The readers for which `producer` adds up its subtree, in the order of their rings.
  static std::vector<int> ReadersOf(const GroupPlacement& placement, int producer);

  bool StepOwnRing(OperationContext& context, Producer& producer);
  bool StepRequestRing(OperationContext& context, Producer& producer);
  bool Announce(OperationContext& context, Ring& ring, int counter, int reader);
  ReduceStream& SumOf(const GroupPlacement& placement, Producer& producer, int part);
  bool StepRequests(OperationContext& context);
  void OnTaskDone(int64_t request) override;

  // A request as the value of a counter.
  int64_t WordOf(const Partial& partial, int64_t slice) const;

  int OwnCounter(const GroupPlacement& placement, int reader) const {
    return size_ + placement.IndexInNode(reader);
  }
  int ServedCounter(const GroupPlacement& placement, int reader) const {
    return size_ + placement.local_size() + placement.IndexInNode(reader);
  }
  int RingsCounter(const GroupPlacement& placement) const { return size_ + 2 * placement.local_size(); }
  int RequestCounter(const GroupPlacement& placement) const { return RingsCounter(placement) + 1; }
  int WordCounter(const GroupPlacement& placement, int64_t request) const {
    return RingsCounter(placement) + kFirstWord + static_cast<int>(request % kRequestSlots);
  }

  Slicing SlicingOf(int part) const {
    return {plan_.parts.counts[static_cast<size_t>(part)], slice_elements_};
  }
  ReduceStream::Leaf InputLeaf(const GroupPlacement& placement, int member, int part) const;
  // Bytes of both rings for one reader.
  size_t rings_bytes() const { return static_cast<size_t>(kOwnSlots + request_slots_) * slot_bytes_; }

  const CollectivePlan plan_;
  const std::vector<WholeMemory> inputs_;
  const DType sum_dtype_;
  const int64_t slice_elements_;
  const int size_;
  const int me_;
  const size_t slot_bytes_;      // A sum of the largest slice.
  const int64_t request_slots_;  // 0 on one node.
  const bool awaits_room_;       // See CreditRules.
  const bool awaits_sums_;
  Buffer rings_;
  std::optional<NodeSubtree> subtree_;  // This rank's domain subtree, if it has several ranks.
  std::deque<Producer> producers_;      // A deque: tasks hold pointers to the rings.
  std::vector<Source> sources_;
  bool found_rings_ = false;
  int64_t reduced_ = 0;            // As published.
  std::deque<Request> waiting_;    // Requests without a slot of the rings.
  std::vector<Request> requests_;  // By slot.
  PrefixCounter request_progress_;
  int64_t pushed_ = 0;  // Requests whose tasks are issued.
};

}  // namespace weft
