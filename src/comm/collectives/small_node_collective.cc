// Small all-gather, broadcast, reduce-scatter and all-reduce of one node: see Note [Last arrival].
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <absl/container/inlined_vector.h>

#include "src/comm/collectives/last_arrival.h"
#include "src/comm/collectives/operations.h"
#include "src/comm/phases/reduce_kernel.h"
#include "src/comm/phases/reduce_phase.h"

namespace weft {
namespace {

// An all-reduce of at most so many bytes is moved by one rank, whatever the number of ranks.
constexpr int64_t kMaxSumBytes = 4096;

// Members of a group without an allocation, if they are few.
constexpr size_t kInlined = 8;
using Members = absl::InlinedVector<int, kInlined>;

int64_t PlanBytes(const CollectivePlan& plan) { return BytesOf(plan.parts.total(), plan.dtype); }

// True if one rank may move the data of all.
bool IsSmallTogether(const GroupPlacement& placement, const CollectivePlan& plan,
                     const EngineOptions& options) {
  if (plan.kind == OpKind::kAllReduce && PlanBytes(plan) <= kMaxSumBytes) return true;
  return PlanBytes(plan) * placement.size() <= MaxWholeBytes(options);
}

int64_t LargestPartBytes(const CollectivePlan& plan) {
  const PartLayout::Elements& counts = plan.parts.counts;
  return BytesOf(*std::max_element(counts.begin(), counts.end()), plan.dtype);
}

class SmallNodeCollective : public Collective {
 public:
  // Outputs of an all-reduce are staged, so that each element is reduced once.
  SmallNodeCollective(CollectivePlan&& plan, bool stages_output)
      : Collective(std::move(plan), {.input = true, .output = stages_output}) {}
  bool is_released_when_drained() const override {
    return last_.outcome() == Moved::kForAll || last_.outcome() == Moved::kByClaims;
  }

 protected:
  bool wakes_peers_on_arrival() const override { return false; }

  absl::Status BeginMove(OperationContext& context) override {
    if (!arrived_last()) return absl::OkStatus();
    ReadBuffers(context);
    Moved outcome = Moved::kForAll;
    for (int member = 0; member < size(); ++member) {
      if (OutputBytesOf(member) == 0) continue;
      if (output(member) == nullptr) {
        outcome = Moved::kForReachable;
      } else {
        members_.push_back(member);
      }
    }
    if (outcome == Moved::kForAll && CanClaim(context)) {
      last_.OfferClaims(context, RuleOfClaims(context));
    } else if (RuleOfClaims(context) == ClaimRule::kWaitingRanks) {
      last_.LeaveToAll(context);
    } else {
      has_moved_own_ = true;
      last_.MoveAsLast(context, outcome, SizeOfMove(), [this] { MoveTo(members_); });
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (done_ || !last_.Poll(context)) return false;
    if (last_.outcome() == Moved::kByClaims) return MoveByClaims(context);
    if (!has_moved_own_ && MovesOwn(context)) {
      has_moved_own_ = true;
      ReadBuffers(context);
      members_ = {context.placement.me()};
      last_.MoveOwn(context, SizeOfMove(), [this] { MoveTo(members_); });
    } else {
      done_ = true;
    }
    return true;
  }
  bool MoveComplete() const override { return done_ || own_is_valid_; }
  bool MoveDrained() const override { return done_; }

  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    if (!done_) last_.AddAwaited(context, ranks);
  }

  // Computes the outputs of these members.
  virtual void MoveTo(const Members& members) const = 0;
  // Bytes of the output of `member`.
  virtual size_t OutputBytesOf(int member) const = 0;
  // Bytes that MoveTo reads for these members.
  virtual size_t InputBytes(const Members& members) const = 0;
  virtual Claimed claimed() const { return Claimed::kOutput; }
  // Writes what `member` owns of that.
  virtual void MoveClaim(int member) const { MoveTo({member}); }
  virtual MoveSize SizeOfClaim(int member) const { return {OutputBytesOf(member), InputBytes({member})}; }

  size_t total_bytes() const {
    return static_cast<size_t>(weft::BytesOf(plan().parts.total(), plan().dtype));
  }
  int64_t CountOf(int member) const { return plan().parts.counts[static_cast<size_t>(member)]; }
  size_t BytesOf(int member) const {
    return static_cast<size_t>(weft::BytesOf(CountOf(member), plan().dtype));
  }
  size_t OffsetOf(int member) const {
    return static_cast<size_t>(
        weft::BytesOf(plan().parts.offsets[static_cast<size_t>(member)], plan().dtype));
  }
  // Buffers by member, valid in MoveTo. The output of a rank that this one cannot reach is null.
  const std::byte* input(int member) const { return inputs_[static_cast<size_t>(member)]; }
  std::byte* output(int member) const { return outputs_[static_cast<size_t>(member)]; }
  size_t inputs() const { return inputs_.size(); }
  int size() const { return static_cast<int>(inputs_.size()); }
  ReduceTarget ScaledTarget(std::byte* data) const { return {data, plan().dtype, scale_}; }

 private:
  // Returns true if this rank has got further.
  bool MoveByClaims(OperationContext& context) {
    done_ = LastArrival::AreAllClaimsMoved(context);
    if (done_) return true;
    const ClaimRule rule = RuleOfClaims(context);
    // The last rank does not return from its submission while claims are left for it.
    const bool is_writer = arrived_last() && rule == ClaimRule::kLastRank;
    const bool was_valid = own_is_valid_;
    own_is_valid_ = !is_writer && claimed() == Claimed::kOutput && LastArrival::IsOwnOutputMoved(context);
    const bool advanced = own_is_valid_ && !was_valid;
    // A thread that waits for *ready* alone is about to return. The owners of the other outputs are awake.
    if (own_is_valid_ && !context.is_release_awaited) return advanced;
    // The rank that offers small outputs does not share a hardware thread.
    if (context.shares_core && rule == ClaimRule::kLastRank) return advanced;
    ReadBuffers(context);
    const bool claims = last_.MoveClaimed(
        context, rule, claimed(), [this](int member) { return SizeOfClaim(member); },
        [this](int member) { MoveClaim(member); });
    return claims || advanced;
  }
  // True if this rank, which arrived last, may offer claims: others can reach its output, and a claim is
  // large enough.
  bool CanClaim(const OperationContext& context) const {
    const bool is_reachable = context.record->descriptor.output != Descriptor::kNoAddress;
    if (RuleOfClaims(context) == ClaimRule::kWaitingRanks) return is_reachable;
    const auto bytes = static_cast<int64_t>(SizeOfClaim(context.placement.me()).written);
    return is_reachable && !context.shares_core && bytes >= LeastClaimedBytes(context.options);
  }
  ClaimRule RuleOfClaims(const OperationContext& context) const {
    return IsSmallTogether(context.placement, plan(), context.options) ? ClaimRule::kLastRank
                                                                       : ClaimRule::kWaitingRanks;
  }
  // True if the rank that arrived last has left this rank's output to it.
  bool MovesOwn(const OperationContext& context) const {
    if (last_.outcome() == Moved::kForNone) return OutputBytesOf(context.placement.me()) > 0;
    const bool is_reachable = context.record->descriptor.output != Descriptor::kNoAddress;
    return last_.outcome() == Moved::kForReachable && !is_reachable &&
           OutputBytesOf(context.placement.me()) > 0;
  }
  // Reads where the buffers of all ranks lie, once.
  void ReadBuffers(const OperationContext& context) {
    if (!inputs_.empty()) return;
    scale_ = TargetOf(context.placement, plan(), nullptr).scale;
    for (int member = 0; member < context.placement.size(); ++member) {
      const SharedBuffers buffers = BuffersOf(context, member);
      inputs_.push_back(buffers.input);
      // Each member published its output for the others to write to.
      outputs_.push_back(const_cast<std::byte*>(buffers.output));
    }
  }
  MoveSize SizeOfMove() const {
    const size_t written =
        std::accumulate(members_.begin(), members_.end(), size_t{0},
                        [this](size_t bytes, int member) { return bytes + OutputBytesOf(member); });
    return {written, InputBytes(members_)};
  }

  // Set once this rank knows what it moves.
  Members members_;  // The members to whose outputs this rank writes.
  absl::InlinedVector<const std::byte*, kInlined> inputs_;
  absl::InlinedVector<std::byte*, kInlined> outputs_;
  double scale_ = 1;

  LastArrival last_;
  bool has_moved_own_ = false;  // This rank has issued the move of its own output.
  bool own_is_valid_ = false;   // This rank's output is written, while others may not be.
  bool done_ = false;
};

// Also broadcasts, in which only the root has a part.
class SmallGather final : public SmallNodeCollective {
 public:
  explicit SmallGather(CollectivePlan&& plan) : SmallNodeCollective(std::move(plan), false) {}

 private:
  size_t OutputBytesOf(int /*member*/) const override { return total_bytes(); }
  size_t InputBytes(const Members& members) const override { return members.size() * total_bytes(); }
  void MoveTo(const Members& members) const override {
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
  explicit SmallReduceScatter(CollectivePlan&& plan) : SmallNodeCollective(std::move(plan), false) {}

 private:
  size_t OutputBytesOf(int member) const override { return BytesOf(member); }
  size_t InputBytes(const Members& members) const override {
    size_t bytes = 0;
    for (const int member : members) bytes += inputs() * BytesOf(member);
    return bytes;
  }
  void MoveTo(const Members& members) const override {
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
  explicit SmallAllReduce(CollectivePlan&& plan) : SmallNodeCollective(std::move(plan), true) {}

 private:
  size_t OutputBytesOf(int /*member*/) const override { return total_bytes(); }
  size_t InputBytes(const Members& /*members*/) const override { return inputs() * total_bytes(); }
  void MoveTo(const Members& members) const override {
    if (members.empty()) return;
    std::vector<LeafSource> leaves;
    leaves.reserve(static_cast<size_t>(size()));
    for (int member = 0; member < size(); ++member) leaves.push_back({input(member), plan().dtype});
    ReduceTarget target = ScaledTarget(output(members.front()));
    for (size_t i = 1; i < members.size(); ++i) target.copies.push_back(output(members[i]));
    RunReduce(ReduceProgramOfRanks(0, size()), leaves, plan().reduce, target, plan().parts.total());
  }
  Claimed claimed() const override { return Claimed::kPart; }
  void MoveClaim(int owner) const override {
    std::vector<LeafSource> leaves;
    leaves.reserve(static_cast<size_t>(size()));
    ReduceTarget target = ScaledTarget(output(owner) + OffsetOf(owner));
    for (int member = 0; member < size(); ++member) {
      leaves.push_back({input(member) + OffsetOf(owner), plan().dtype});
      if (member != owner) target.copies.push_back(output(member) + OffsetOf(owner));
    }
    RunReduce(ReduceProgramOfRanks(0, size()), leaves, plan().reduce, target, CountOf(owner));
  }
  MoveSize SizeOfClaim(int owner) const override {
    return {inputs() * BytesOf(owner), inputs() * BytesOf(owner)};
  }
};

}  // namespace

bool IsSmallOnNode(const GroupPlacement& placement, const CollectivePlan& plan,
                   const EngineOptions& options) {
  if (placement.spans_nodes() || placement.size() == 1) return false;
  const int64_t bytes = PlanBytes(plan);
  const bool is_sum = plan.kind == OpKind::kAllReduce;
  if (is_sum && bytes <= kMaxSumBytes) return true;
  const bool is_private_gather = plan.kind == OpKind::kAllGather || plan.kind == OpKind::kBroadcast;
  const bool is_supported = is_sum || is_private_gather || plan.kind == OpKind::kReduceScatter;
  // Fixed ranks copy between share domains: see Note [Shared outputs].
  if (!is_supported || placement.spans_domains() || plan.parts.ranges != nullptr) return false;
  if (IsSmallTogether(placement, plan, options)) return true;
  // A claim writes an output, or reduces a part of all inputs.
  const int64_t claimed_bytes = is_private_gather ? bytes : LargestPartBytes(plan) * placement.size();
  return bytes >= LeastClaimedBytes(options) && claimed_bytes <= MaxClaimedBytes(options) &&
         bytes * placement.size() <= MaxClaimedTogetherBytes(options);
}

std::unique_ptr<Operation> MakeSmallNodeCollective(CollectivePlan&& plan) {
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
