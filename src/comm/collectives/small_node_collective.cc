// Small all-gather, broadcast, reduce-scatter and all-reduce of one node: see Note [Last arrival].
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "src/comm/collectives/last_arrival.h"
#include "src/comm/collectives/operations.h"
#include "src/comm/phases/reduce_kernel.h"
#include "src/comm/phases/reduce_phase.h"

namespace weft {
namespace {

// An all-reduce of at most so many bytes is moved by one rank, whatever the number of ranks.
constexpr int64_t kMaxSumBytes = 4096;

class SmallNodeCollective : public Collective, private TaskOwner, private WholeMove {
 public:
  // Outputs of an all-reduce are staged, so that each element is reduced once.
  SmallNodeCollective(CollectivePlan plan, bool stages_output)
      : Collective(std::move(plan), {.input = true, .output = stages_output}) {}
  bool is_released_when_drained() const override { return moved_ == Moved::kForAll; }

 protected:
  bool wakes_peers_on_arrival() const override { return false; }
  bool takes_rings() const override { return false; }

  absl::Status BeginMove(OperationContext& context) override {
    if (!arrived_last()) return absl::OkStatus();
    last_.emplace(context);
    last_->Tell(Moved::kNothing);
    moved_ = Moved::kForAll;
    std::vector<int> reachable;
    for (int member = 0; member < context.placement.size(); ++member) {
      const bool is_written = OutputBytesOf(member) > 0;
      if (is_written && OutputOf(context, member) == nullptr) {
        moved_ = Moved::kForReachable;
      } else if (is_written) {
        reachable.push_back(member);
      }
    }
    StartMove(context, std::move(reachable));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (done_) return false;
    if (!is_moving_) return FollowLast(context);
    return done_ = is_moved_;
  }
  bool MoveComplete() const override { return done_; }
  bool MoveDrained() const override { return done_; }

  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    if (done_ || is_moving_) return;
    LastArrival(context).AddAwaited(ranks);
  }

  // Computes the outputs of these members.
  virtual void MoveTo(const std::vector<int>& members) const = 0;
  // Bytes of the output of `member`.
  virtual size_t OutputBytesOf(int member) const = 0;

  size_t total_bytes() const { return static_cast<size_t>(plan().parts.total()) * SizeOf(plan().dtype); }
  int64_t CountOf(int member) const { return plan().parts.counts[static_cast<size_t>(member)]; }
  size_t BytesOf(int member) const { return static_cast<size_t>(CountOf(member)) * SizeOf(plan().dtype); }
  size_t OffsetOf(int member) const {
    return static_cast<size_t>(plan().parts.offsets[static_cast<size_t>(member)]) * SizeOf(plan().dtype);
  }
  // Buffers by member, valid in MoveTo. The output of a rank that this one cannot reach is null.
  const std::byte* input(int member) const { return inputs_[static_cast<size_t>(member)]; }
  std::byte* output(int member) const { return outputs_[static_cast<size_t>(member)]; }
  int size() const { return static_cast<int>(inputs_.size()); }
  ReduceTarget ScaledTarget(std::byte* data) const { return {data, plan().dtype, scale_}; }

 private:
  void OnTaskDone(int64_t /*ticket*/) override {
    is_moved_ = true;
    if (last_) last_->TellAndWakePeers(moved_);
  }
  void Run() const override { MoveTo(members_); }

  void StartMove(OperationContext& context, std::vector<int> members) {
    is_moving_ = true;
    members_ = std::move(members);
    scale_ = TargetOf(context.placement, plan(), nullptr).scale;
    size_t bytes = 0;
    for (int member = 0; member < context.placement.size(); ++member) {
      inputs_.push_back(InputOf(context, member));
      // Each member published its output for the others to write to.
      outputs_.push_back(const_cast<std::byte*>(OutputOf(context, member)));
    }
    for (const int member : members_) bytes += OutputBytesOf(member);
    DataTask task{context.record, this, 0, context.priority, WholeMoveTask{this, bytes}};
    task.is_immediate = true;
    context.tasks.Push(std::move(task));
  }

  // Waits for the rank that arrived last.
  bool FollowLast(OperationContext& context) {
    moved_ = LastArrival(context).moved();
    if (moved_ == Moved::kNothing) return false;
    const int me = context.placement.me();
    const bool is_reachable = context.record->descriptor.output != Descriptor::kNoAddress;
    if (moved_ == Moved::kForReachable && !is_reachable && OutputBytesOf(me) > 0) {
      StartMove(context, {me});
    } else {
      done_ = true;
    }
    return true;
  }

  // Set by StartMove.
  std::vector<int> members_;  // Whose outputs this rank writes.
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  double scale_ = 1;
  bool is_moving_ = false;

  std::optional<LastArrival> last_;  // Set if this rank is the last one.
  bool is_moved_ = false;            // The task of the move has finished.
  bool done_ = false;
  Moved moved_ = Moved::kNothing;  // By the rank that arrived last.
};

// Also broadcasts, in which only the root has a part.
class SmallGather final : public SmallNodeCollective {
 public:
  explicit SmallGather(CollectivePlan plan) : SmallNodeCollective(std::move(plan), false) {}

 private:
  size_t OutputBytesOf(int /*member*/) const override { return total_bytes(); }
  void MoveTo(const std::vector<int>& members) const override {
    for (const int member : members) {
      for (int owner = 0; owner < size(); ++owner) {
        std::byte* const part = output(member) + OffsetOf(owner);
        if (BytesOf(owner) > 0 && part != input(owner)) std::memcpy(part, input(owner), BytesOf(owner));
      }
    }
  }
};

class SmallReduceScatter final : public SmallNodeCollective {
 public:
  explicit SmallReduceScatter(CollectivePlan plan) : SmallNodeCollective(std::move(plan), false) {}

 private:
  size_t OutputBytesOf(int member) const override { return BytesOf(member); }
  void MoveTo(const std::vector<int>& members) const override {
    const ReduceProgram program = ReduceProgramOfRanks(0, size());
    std::vector<LeafSource> leaves(static_cast<size_t>(size()));
    for (const int owner : members) {
      for (int member = 0; member < size(); ++member) {
        leaves[static_cast<size_t>(member)] = {input(member) + OffsetOf(owner), plan().dtype};
      }
      RunReduce(program, leaves, plan().reduce, ScaledTarget(output(owner)), CountOf(owner));
    }
  }
};

class SmallAllReduce final : public SmallNodeCollective {
 public:
  explicit SmallAllReduce(CollectivePlan plan) : SmallNodeCollective(std::move(plan), true) {}

 private:
  size_t OutputBytesOf(int /*member*/) const override { return total_bytes(); }
  void MoveTo(const std::vector<int>& members) const override {
    if (members.empty()) return;
    std::vector<LeafSource> leaves;
    leaves.reserve(static_cast<size_t>(size()));
    for (int member = 0; member < size(); ++member) leaves.push_back({input(member), plan().dtype});
    ReduceTarget target = ScaledTarget(output(members.front()));
    for (size_t i = 1; i < members.size(); ++i) target.copies.push_back(output(members[i]));
    RunReduce(ReduceProgramOfRanks(0, size()), leaves, plan().reduce, target, plan().parts.total());
  }
};

}  // namespace

bool IsSmallOnNode(const GroupPlacement& placement, const CollectivePlan& plan,
                   const EngineOptions& options) {
  if (placement.spans_nodes() || placement.size() == 1) return false;
  const int64_t bytes = plan.parts.total() * static_cast<int64_t>(SizeOf(plan.dtype));
  const bool is_sum = plan.kind == OpKind::kAllReduce;
  if (is_sum && bytes <= kMaxSumBytes) return true;
  const bool is_supported = is_sum || plan.kind == OpKind::kAllGather || plan.kind == OpKind::kBroadcast ||
                            plan.kind == OpKind::kReduceScatter;
  // Copies between share domains are the work of ranks that are dealt them.
  if (!is_supported || placement.spans_domains() || plan.parts.ranges != nullptr) return false;
  return bytes * placement.size() <= MaxWholeBytes(options);
}

std::unique_ptr<Operation> MakeSmallNodeCollective(CollectivePlan plan) {
  switch (plan.kind) {
    case OpKind::kReduceScatter:
      return std::make_unique<SmallReduceScatter>(std::move(plan));
    case OpKind::kAllReduce:
      return std::make_unique<SmallAllReduce>(std::move(plan));
    default:
      return std::make_unique<SmallGather>(std::move(plan));
  }
}

}  // namespace weft
