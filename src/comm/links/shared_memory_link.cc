#include "src/comm/links/shared_memory_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_cat.h>

#include "weft/core/futex.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr size_t kLine = 64;

struct Slot {
  alignas(kLine) std::atomic<uint64_t> published{0};  // Sequence of the descriptor in this slot.
  Descriptor descriptor;
  alignas(kLine) std::atomic<int64_t> claimed{0};  // Claimed pieces. May exceed their number.
};

struct LaneFlags {
  alignas(kLine) std::atomic<uint64_t> consumed{0};
  // Offset in the owner's segment of an array [kSlots, counter_count] of atomic counters.
  alignas(kLine) std::atomic<uint64_t> counters_offset{0};
  int64_t counter_count = 0;
  std::array<Slot, NodeLink::kSlots> slots;
};

struct FailureSlot {
  static constexpr size_t kTextBytes = 480;
  alignas(kLine) std::atomic<uint32_t> code{0};  // absl::StatusCode. 0: no failure.
  std::array<char, kTextBytes> text{};
};

// Flags that one rank writes and its local peers read. Peers also write the doorbell and the claim counters.
struct RankFlags {
  alignas(kLine) std::atomic<uint32_t> doorbell{0};
  alignas(kLine) std::atomic<uint32_t> sleepers{0};
  alignas(kLine) std::atomic<uint64_t> heartbeats{0};
  FailureSlot failure;
  std::array<LaneFlags, NodeLink::kMaxLanes> lanes;
};

class SharedMemoryLink final : public NodeLink {
 public:
  SharedMemoryLink(NodeHeap& heap, int rank, std::byte* block)
      : NodeLink(heap), rank_(rank), own_(new (block) RankFlags) {}
  // The flags stay allocated in the node heap: a peer that has just released its last operation may still
  // ring the doorbell.
  ~SharedMemoryLink() override = default;

  void AddPeer(int peer, RankFlags* flags) { flags_of_[peer] = flags; }
  RankFlags* own() { return own_; }

  absl::Status OpenLane(int lane, int counters) override {
    LaneFlags& flags = own_->lanes[static_cast<size_t>(lane)];
    if (flags.counter_count == counters) return absl::OkStatus();
    const size_t total = kSlots * static_cast<size_t>(counters);
    WEFT_ASSIGN_OR_RETURN(std::byte * block, heap().Allocate(total * sizeof(std::atomic<int64_t>)));
    auto* values = reinterpret_cast<std::atomic<int64_t>*>(block);
    for (size_t i = 0; i < total; ++i) new (values + i) std::atomic<int64_t>(0);
    flags.counter_count = counters;
    flags.counters_offset.store(heap().AddressOf(block)->offset, std::memory_order_release);
    return absl::OkStatus();
  }

  void Publish(int lane, const Descriptor& descriptor) override {
    LaneFlags& flags = own_->lanes[static_cast<size_t>(lane)];
    for (int64_t i = 0; i < flags.counter_count; ++i) {
      CounterOf(rank_, lane, descriptor.sequence, static_cast<int>(i)).store(0, std::memory_order_relaxed);
    }
    Slot& slot = flags.slots[descriptor.sequence % kSlots];
    slot.descriptor = descriptor;
    slot.claimed.store(0, std::memory_order_relaxed);
    slot.published.store(descriptor.sequence, std::memory_order_release);
  }

  std::optional<Descriptor> Peek(int lane, int peer, uint64_t sequence) const override {
    const Slot& slot = Flags(peer).lanes[static_cast<size_t>(lane)].slots[sequence % kSlots];
    if (slot.published.load(std::memory_order_acquire) != sequence) return std::nullopt;
    return slot.descriptor;
  }

  void SetCounter(int lane, uint64_t sequence, int index, int64_t value) override {
    CounterOf(rank_, lane, sequence, index).store(value, std::memory_order_release);
  }
  int64_t Counter(int lane, int peer, uint64_t sequence, int index) const override {
    return CounterOf(peer, lane, sequence, index).load(std::memory_order_acquire);
  }

  // Relaxed: a claim decides which rank reduces a piece. It does not order data.
  std::optional<int64_t> ClaimPiece(int lane, int peer, uint64_t sequence, int64_t count) override {
    if (AllPiecesClaimed(lane, peer, sequence, count)) return std::nullopt;
    const int64_t piece = ClaimedOf(peer, lane, sequence).fetch_add(1, std::memory_order_relaxed);
    return piece < count ? std::optional(piece) : std::nullopt;
  }
  bool AllPiecesClaimed(int lane, int peer, uint64_t sequence, int64_t count) const override {
    return ClaimedOf(peer, lane, sequence).load(std::memory_order_relaxed) >= count;
  }

  void Release(int lane, uint64_t sequence) override {
    own_->lanes[static_cast<size_t>(lane)].consumed.store(sequence, std::memory_order_release);
  }
  uint64_t Consumed(int lane, int peer) const override {
    return Flags(peer).lanes[static_cast<size_t>(lane)].consumed.load(std::memory_order_acquire);
  }

  void PublishFailure(const absl::Status& cause) override {
    FailureSlot& failure = own_->failure;
    if (failure.code.load(std::memory_order_relaxed) != 0) return;
    const size_t length = std::min(cause.message().size(), FailureSlot::kTextBytes - 1);
    std::memcpy(failure.text.data(), cause.message().data(), length);
    failure.text[length] = '\0';
    failure.code.store(static_cast<uint32_t>(cause.code()), std::memory_order_release);
    for (const auto& [peer, flags] : flags_of_) Ring(peer);
  }
  std::optional<FailureNotice> ReadFailure() const override {
    for (const auto& [peer, flags] : flags_of_) {
      const uint32_t code = flags->failure.code.load(std::memory_order_acquire);
      if (code == 0) continue;
      return FailureNotice{peer,
                           absl::Status(static_cast<absl::StatusCode>(code), flags->failure.text.data())};
    }
    return std::nullopt;
  }

  void PublishHeartbeat() override {
    const uint64_t heartbeats = own_->heartbeats.load(std::memory_order_relaxed);
    own_->heartbeats.store(heartbeats + 1, std::memory_order_relaxed);
  }
  uint64_t Heartbeats(int peer) const override {
    return Flags(peer).heartbeats.load(std::memory_order_relaxed);
  }

  void Reset() override {
    own_->failure.code.store(0, std::memory_order_relaxed);
    for (LaneFlags& lane : own_->lanes) {
      lane.consumed.store(0, std::memory_order_relaxed);
      for (Slot& slot : lane.slots) slot.published.store(0, std::memory_order_relaxed);
    }
  }

  // Note [Doorbell]
  // Problem: a rank that sleeps must not miss a flag that a peer stores between its last poll and its sleep.
  // Rule: the sleeper reads the doorbell, polls the flags, increments `sleepers`, and calls futex wait with
  // the value that it has read. The ringer stores its flag, increments the doorbell, and wakes the futex if
  // `sleepers` is not 0.
  // Why it suffices: the two increments and the kernel's comparison are sequentially consistent
  // read-modify-writes. Either the ringer sees the sleeper and wakes it, or the kernel's comparison sees the
  // new doorbell and does not sleep.
  // Without the order, a wake-up could be lost until the timeout.
  void Ring(int peer) override {
    RankFlags& flags = peer == rank_ ? *own_ : Flags(peer);
    flags.doorbell.fetch_add(1, std::memory_order_seq_cst);
    if (flags.sleepers.load(std::memory_order_seq_cst) > 0)
      FutexWakeAll(flags.doorbell, heap().shared_between_processes());
  }
  uint32_t Doorbell() const override { return own_->doorbell.load(std::memory_order_acquire); }
  void Wait(uint32_t seen, int64_t timeout_ns) override {
    own_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    FutexWait(own_->doorbell, seen, timeout_ns, heap().shared_between_processes());
    own_->sleepers.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  RankFlags& Flags(int peer) const {
    if (peer == rank_) return *own_;
    const auto it = flags_of_.find(peer);
    WEFT_CHECK(it != flags_of_.end(), "a NodeLink was asked for the flags of a rank of another node");
    return *it->second;
  }
  std::atomic<int64_t>& ClaimedOf(int peer, int lane, uint64_t sequence) const {
    return Flags(peer).lanes[static_cast<size_t>(lane)].slots[sequence % kSlots].claimed;
  }
  std::atomic<int64_t>& CounterOf(int peer, int lane, uint64_t sequence, int index) const {
    const LaneFlags& flags = Flags(peer).lanes[static_cast<size_t>(lane)];
    const uint64_t offset = flags.counters_offset.load(std::memory_order_acquire);
    auto* values = reinterpret_cast<std::atomic<int64_t>*>(heap().Resolve({peer, offset}));
    return values[(sequence % kSlots) * static_cast<uint64_t>(flags.counter_count) +
                  static_cast<uint64_t>(index)];
  }

  int rank_;
  RankFlags* own_;
  absl::flat_hash_map<int, RankFlags*> flags_of_;  // Flags of local peers by bootstrap rank.
};

}  // namespace

absl::StatusOr<std::unique_ptr<NodeLink>> MakeSharedMemoryLink(Bootstrap& bootstrap, NodeHeap& heap,
                                                               absl::Duration timeout) {
  const absl::StatusOr<std::byte*> block = heap.Allocate(sizeof(RankFlags));
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, block.status(), timeout));
  auto link = std::make_unique<SharedMemoryLink>(heap, bootstrap.rank(), *block);
  const uint64_t offset = heap.AddressOf(link->own())->offset;
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<std::string> offsets,
      ExchangeBlobs(bootstrap, "flags of an engine",
                    std::string(reinterpret_cast<const char*>(&offset), sizeof(offset)), timeout));
  for (int peer : bootstrap.node_map().RanksOf(bootstrap.node())) {
    if (peer == bootstrap.rank()) continue;
    uint64_t peer_offset = 0;
    const std::string& theirs = offsets[static_cast<size_t>(peer)];
    WEFT_CHECK(theirs.size() == sizeof(peer_offset), "a peer sent an offset of another size");
    std::memcpy(&peer_offset, theirs.data(), sizeof(peer_offset));
    link->AddPeer(peer, reinterpret_cast<RankFlags*>(heap.Resolve({peer, peer_offset})));
  }
  return link;
}

}  // namespace weft
