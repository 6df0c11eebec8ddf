// All-to-all: every rank pulls its part out of the inputs of its node's ranks, and exchanges slices with the
// others.
#include <deque>
#include <utility>

#include "src/comm/operations.h"

namespace weft {
namespace {

constexpr int kExchangeChannel = 0;
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

class AllToAllOperation final : public Collective {
 public:
  AllToAllOperation(const GroupPlacement& placement, CollectivePlan plan)
      : Collective(std::move(plan), {.input = !placement.local_peers().empty(), .output = false}) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    ShowParts(context);
    const GroupPlacement& placement = context.placement;
    unseen_ = placement.local_peers();
    AddPull(context, placement.me(), plan().input + PartBytes(plan().parts, placement.me()));
    for (int step = 1; step < placement.size(); ++step) {
      const int member = (placement.me() + step) % placement.size();
      if (!placement.IsLocal(member)) AddExchange(context, member);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    WEFT_ASSIGN_OR_RETURN(bool advanced, FindParts(context));
    for (CopyStream& pull : pulls_) advanced |= pull.Step(context, kAll);
    for (ReceiveStream& receive : receives_) {
      WEFT_ASSIGN_OR_RETURN(const bool credited, receive.Step(context, 0));
      advanced |= credited;
    }
    for (SendStream& send : sends_) {
      WEFT_ASSIGN_OR_RETURN(const bool sent, send.Step(context, kAll));
      advanced |= sent;
    }
    return advanced;
  }

  bool MoveComplete() const override {
    return unseen_.empty() &&
           std::all_of(pulls_.begin(), pulls_.end(), [](const CopyStream& s) { return s.finished(); }) &&
           std::all_of(receives_.begin(), receives_.end(),
                       [](const ReceiveStream& s) { return s.finished(); });
  }
  bool MoveDrained() const override {
    return MoveComplete() &&
           std::all_of(sends_.begin(), sends_.end(), [](const SendStream& s) { return s.finished(); });
  }
  void AddAwaited(std::set<int>& ranks) const override {
    for (const ReceiveStream& receive : receives_) {
      if (!receive.finished()) ranks.insert(receive.peer());
    }
    for (const SendStream& send : sends_) {
      if (!send.finished()) ranks.insert(send.peer());
    }
  }

 private:
  size_t PartBytes(const PartLayout& layout, int member) const {
    return static_cast<size_t>(layout.offsets[static_cast<size_t>(member)]) * SizeOf(plan().dtype);
  }
  Slicing SlicingOf(const OperationContext& context, int64_t elements) const {
    return {elements, SliceElements(context, plan().dtype)};
  }

  // Where each peer's part lies depends on the counts of this rank alone: the counters say it. Counter P + j
  // is the size of j's part; counter j, its place plus one, is written last.
  void ShowParts(OperationContext& context) {
    const int size = context.placement.size();
    const uint64_t sequence = context.record->descriptor.sequence;
    for (int peer : context.placement.local_peers()) {
      const auto index = static_cast<size_t>(peer);
      context.node.SetCounter(context.record->lane, sequence, size + peer, plan().parts.counts[index]);
      context.node.SetCounter(context.record->lane, sequence, peer, plan().parts.offsets[index] + 1);
      context.node.Ring(context.placement.WorldRank(peer));
    }
  }

  absl::StatusOr<bool> FindParts(OperationContext& context) {
    const size_t before = unseen_.size();
    for (size_t i = 0; i < unseen_.size();) {
      WEFT_ASSIGN_OR_RETURN(const bool found, FindPart(context, unseen_[i]));
      if (found) {
        unseen_.erase(unseen_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    return unseen_.size() != before;
  }

  absl::StatusOr<bool> FindPart(OperationContext& context, int peer) {
    const GroupPlacement& placement = context.placement;
    const int rank = placement.WorldRank(peer);
    const uint64_t sequence = context.record->descriptor.sequence;
    const int64_t place = context.node.Counter(context.record->lane, rank, sequence, placement.me());
    if (place == 0) return false;
    const int64_t count =
        context.node.Counter(context.record->lane, rank, sequence, placement.size() + placement.me());
    const int64_t expected = plan().received.counts[static_cast<size_t>(peer)];
    if (count != expected) {
      return CountMismatch(*context.record, rank, count, placement.WorldRank(placement.me()), expected);
    }
    AddPull(context, peer, InputOf(context, peer) + static_cast<size_t>(place - 1) * SizeOf(plan().dtype));
    return true;
  }

  void AddPull(const OperationContext& context, int member, const std::byte* source) {
    const int64_t elements = plan().received.counts[static_cast<size_t>(member)];
    const size_t element_bytes = SizeOf(plan().dtype);
    pulls_.emplace_back(
        SlicingOf(context, elements), SliceMemory{const_cast<std::byte*>(source), element_bytes},
        SliceMemory{plan().output + PartBytes(plan().received, member), element_bytes}, false);
  }

  void AddExchange(const OperationContext& context, int member) {
    const WireDesk::Channel channel{context.record->lane, context.record->descriptor.sequence,
                                    context.placement.WorldRank(member), kExchangeChannel};
    const size_t element_bytes = SizeOf(plan().dtype);
    const auto index = static_cast<size_t>(member);
    const SliceMemory place{plan().output + PartBytes(plan().received, member), element_bytes};
    const SliceMemory part{const_cast<std::byte*>(plan().input) + PartBytes(plan().parts, member),
                           element_bytes};
    receives_.emplace_back(channel, WirePhase::kGather, SlicingOf(context, plan().received.counts[index]),
                           place);
    sends_.emplace_back(channel, SlicingOf(context, plan().parts.counts[index]), part);
  }

  std::vector<int> unseen_;  // Peers of the node whose parts are not known yet.
  std::deque<CopyStream> pulls_;
  std::deque<ReceiveStream> receives_;
  std::deque<SendStream> sends_;
};

}  // namespace

std::unique_ptr<Operation> MakeAllToAll(const GroupPlacement& placement, CollectivePlan plan) {
  return std::make_unique<AllToAllOperation>(placement, std::move(plan));
}

}  // namespace weft
