// Base class of all collectives: staging, publication, agreement with local peers, and unstaging.
//
//   (stage input)?, publish, read and compare the descriptors of local peers, move, (unstage output)?
//
// Derived classes implement the move.
//
// Note [View tables]
// Problem: only the owner of source views knows where they lie, but local peers read them directly.
// Rule: a rank publishes, as its input, a table in node memory with the address of each view. A view outside
// node memory is copied there first; a view of zeros has no address, and readers use zeros of their own. The
// ranges of the views are the same on all ranks, which a hash tells.
// Why it suffices: publishing the descriptor makes the rows visible, and the table lives as long as the
// operation.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/comm/phases/collective_plan.h"
#include "src/comm/phases/operation.h"
#include "src/comm/phases/staged_phase.h"
#include "src/comm/phases/streams.h"

namespace weft {

class Collective : public Operation {
 public:
  // Buffers that peers access and that must therefore lie in node memory.
  struct Sharing {
    bool input;
    bool output;
  };
  // The node leader reads the inputs of the node, whose other ranks read its output.
  static Sharing SharingThroughHost(const GroupPlacement& placement) {
    const bool is_leader = placement.node_leader() == placement.me();
    return {.input = !is_leader, .output = is_leader && !placement.local_peers().empty()};
  }
  Collective(CollectivePlan&& plan, Sharing sharing) : plan_(std::move(plan)), sharing_(sharing) {}

  absl::StatusOr<Progress> Step(OperationContext& context) final;
  bool ready() const final { return stage_ == Stage::kDone; }
  bool drained() const final { return stage_ == Stage::kDone && MoveDrained(); }
  std::set<int> AwaitedRanks(const OperationContext& context) const final;

 protected:
  // Ensures that the buffers that peers access lie in node memory, and adds the staging copies. By default,
  // stages input and output according to `Sharing`.
  virtual absl::Status PrepareMemory(OperationContext& context);
  // Adds a staging copy, which counts in copied_bytes.
  void AddStaging(OperationContext& context, RangeCopy copy, const std::byte* source, std::byte* target);
  // Publishes `memory` as this rank's input, instead of the plan's.
  void SetSharedInput(const std::byte* memory) { plan_.input = memory; }
  // Called once all local peers have published. `plan()` then names the staged buffers, but not staging
  // rings.
  virtual absl::Status BeginMove(OperationContext& context) = 0;
  virtual absl::StatusOr<bool> Move(OperationContext& context) = 0;
  virtual bool MoveComplete() const = 0;
  virtual bool MoveDrained() const = 0;
  virtual void AddAwaited(const OperationContext& context, std::set<int>& ranks) const = 0;

  // True if the move begins with MakeStagedPhase: large buffers are then not staged whole, but go through
  // staging rings.
  virtual bool takes_rings() const { return false; }
  // False if only the rank that arrives last does something then: the others need no wake-up.
  virtual bool wakes_peers_on_arrival() const { return true; }

  const CollectivePlan& plan() const { return plan_; }
  // True if this rank was the last one of its node to publish the operation. Valid in BeginMove.
  bool arrived_last() const { return arrival_ == Arrival::kLast; }
  // Published input and output of `member`, or null if it shares none. REQUIRES: `member` is on this node,
  // and BeginMove has been called.
  const std::byte* InputOf(const OperationContext& context, int member) const;
  const std::byte* OutputOf(const OperationContext& context, int member) const;
  // Returns both buffers. Reads the descriptor anew and does not keep it: call it once for each member.
  // REQUIRES: the same.
  struct SharedBuffers {
    const std::byte* input;
    const std::byte* output;
  };
  SharedBuffers BuffersOf(const OperationContext& context, int member) const;
  // The error for a local peer whose operation does not match. REQUIRES: BeginMove has been called.
  absl::Status MismatchWith(const OperationContext& context, int member) const;
  // The phase that moves the operation if takes_rings, and this rank or a peer has published rings; otherwise
  // null. REQUIRES: the group is on one node, and BeginMove has been called. See Note [Staging rings].
  std::unique_ptr<StagedPhase> MakeStagedPhase(OperationContext& context) const;
  // The same for an input that may lie in views.
  WholeMemory WholeInputOf(const OperationContext& context, int member) const;
  // By group rank: WholeInputOf for ranks of this node, null for others.
  std::vector<WholeMemory> LocalInputs(const OperationContext& context) const;
  // Elements of a slice if the group spans nodes, else of a piece.
  static int64_t SliceElements(const OperationContext& context, DType dtype);

 private:
  enum class Stage : uint8_t { kNew, kStaging, kAwaitingPeers, kMoving, kUnstaging, kDone };

  bool UsesRings(const OperationContext& context) const;
  int64_t RingPieceElements(const OperationContext& context) const;
  absl::Status StageInput(OperationContext& context);
  absl::Status StageViews(OperationContext& context);
  void ReadViewTables(OperationContext& context);
  void Publish(OperationContext& context);
  // Returns true if all local peers have published the same operation.
  absl::StatusOr<bool> AwaitArrivals(OperationContext& context);
  // Returns false if the peer has not published the operation yet. Errors: kFailedPrecondition (mismatch).
  absl::StatusOr<bool> ComparePeer(const OperationContext& context, int peer) const;
  // The descriptor of a local peer. REQUIRES: all have published.
  static Descriptor ReadDescriptor(const OperationContext& context, int peer);
  // The same for any rank of this node, read once and kept.
  const Descriptor& DescriptorOf(const OperationContext& context, int member) const;
  absl::Status StartUnstaging(OperationContext& context);
  bool StepStaging(OperationContext& context);
  bool IsStagingDone() const;

  CollectivePlan plan_;
  const Sharing sharing_;
  Stage stage_ = Stage::kNew;
  std::byte* caller_output_ = nullptr;  // The submitted output; plan_.output may be the staged one.
  Buffer staged_input_;
  Buffer staged_output_;
  // See Note [View tables].
  Buffer view_rows_;
  std::vector<const std::byte*> view_data_;            // This rank's views, by view. Null: zeros.
  std::vector<std::optional<ViewTable>> view_tables_;  // By group rank, for ranks of this node.
  std::vector<std::byte> zeros_;                       // A slice, if any view is zeros.
  // See Note [Staging rings].
  Buffer input_rings_;
  Buffer output_ring_;
  // A list: tasks hold pointers to the streams, and most operations have none.
  std::list<RangeStream> staging_;
  enum class Arrival : uint8_t { kNone, kCounted, kLast };
  Arrival arrival_ = Arrival::kNone;  // See Note [Arrivals].
  uint64_t node_hash_ = 0;            // HashOnNode of the published descriptor.
  bool is_early_ = true;              // This rank has not looked at the counters since its arrival.
  size_t next_compared_ = 0;          // Index of the local peer whose descriptor is compared next.
  // Descriptors of the node's members that were read, by place in the node. Empty until the first one is.
  mutable std::vector<std::optional<Descriptor>> descriptors_;
};

}  // namespace weft
