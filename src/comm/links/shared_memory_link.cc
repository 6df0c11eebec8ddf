#include "src/comm/links/shared_memory_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_cat.h>

#include "src/comm/links/mailbox.h"
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

// Flags of one lane. An array [kSlots, counter_count] of atomic counters follows.
struct LaneFlags {
  explicit LaneFlags(int64_t counters) : counter_count(counters) {
    for (size_t i = 0; i < NodeLink::kSlots * static_cast<size_t>(counters); ++i)
      new (FirstCounter() + i) std::atomic<int64_t>(0);
  }
  static size_t Bytes(int counters) {
    return sizeof(LaneFlags) +
           NodeLink::kSlots * static_cast<size_t>(counters) * sizeof(std::atomic<int64_t>);
  }
  std::atomic<int64_t>& Counter(uint64_t sequence, int index) {
    return FirstCounter()[(sequence % NodeLink::kSlots) * static_cast<uint64_t>(counter_count) +
                          static_cast<uint64_t>(index)];
  }
  Slot& At(uint64_t sequence) { return slots[sequence % NodeLink::kSlots]; }

  alignas(kLine) std::atomic<uint64_t> consumed{0};
  alignas(kLine) const int64_t counter_count;
  std::array<Slot, NodeLink::kSlots> slots;

 private:
  std::atomic<int64_t>* FirstCounter() { return reinterpret_cast<std::atomic<int64_t>*>(this + 1); }
};

// Memory for flags is taken as lanes are opened.
constexpr int kBlockLanes = 1024;
// By lane of the block: 1 + the offset of its LaneFlags in the owner's segment. 0 until the lane is open.
using LaneBlock = std::array<std::atomic<uint64_t>, kBlockLanes>;

struct FailureSlot {
  static constexpr size_t kTextBytes = 480;
  alignas(kLine) std::atomic<uint32_t> code{0};  // absl::StatusCode. 0: no failure.
  int32_t rank = 0;                              // The rank that failed first.
  std::array<char, kTextBytes> text{};
};

// Flags that one rank writes and its local peers read. Peers also write the doorbell and the claim counters.
struct RankFlags {
  alignas(kLine) std::atomic<uint32_t> doorbell{0};
  alignas(kLine) std::atomic<uint32_t> sleepers{0};
  alignas(kLine) std::atomic<uint64_t> heartbeats{0};
  // Offset of the mailboxes that this rank writes, by the reader's position in the node.
  uint64_t mailboxes = 0;
  FailureSlot failure;
  // By block of lanes: 1 + the offset of its LaneBlock in the owner's segment. 0 until a lane of it is open.
  alignas(kLine) std::array<std::atomic<uint64_t>, NodeLink::kMaxLanes / kBlockLanes> blocks{};
};

class SharedMemoryLink final : public NodeLink {
 public:
  // `position` is that of the rank in its node.
  SharedMemoryLink(NodeHeap& heap, int rank, int position, std::byte* flags, Mailbox* mailboxes)
      : NodeLink(heap),
        rank_(rank),
        position_(position),
        own_(new (flags) RankFlags),
        mailboxes_(mailboxes),
        self_{own_} {
    own_->mailboxes = heap.AddressOf(mailboxes)->offset;
  }
  // The flags stay allocated in the node heap: a peer that has just released its last operation may still
  // ring the doorbell.
  ~SharedMemoryLink() override = default;

  // `position` is that of the peer in the node.
  void AddPeer(int peer, int position, RankFlags* flags) {
    auto* incoming = reinterpret_cast<Mailbox*>(heap().Resolve({peer, flags->mailboxes}));
    peers_[peer] = {flags, mailboxes_ + position, incoming + position_};
  }
  RankFlags* own() { return own_; }

  absl::Status OpenLane(int lane, int counters) override {
    if (LaneFlags* open = Find(rank_, lane)) {
      WEFT_CHECK(open->counter_count == counters, "a lane was opened again with other counters");
      return absl::OkStatus();
    }
    WEFT_RETURN_IF_ERROR(ReserveLane(counters));
    std::byte* block = reserved_.extract(counters).mapped();
    new (block) LaneFlags(counters);
    std::atomic<uint64_t>& lanes = own_->blocks[static_cast<size_t>(lane / kBlockLanes)];
    if (lanes.load(std::memory_order_relaxed) == 0) {
      const auto* added = new (std::exchange(reserved_block_, nullptr)) LaneBlock{};
      lanes.store(heap().AddressOf(added)->offset + 1, std::memory_order_release);
    }
    EntryOf(rank_, *own_, lane)->store(heap().AddressOf(block)->offset + 1, std::memory_order_release);
    return absl::OkStatus();
  }
  absl::Status ReserveLane(int counters) override {
    if (reserved_block_ == nullptr) {
      WEFT_ASSIGN_OR_RETURN(reserved_block_, heap().Allocate(sizeof(LaneBlock)));
    }
    if (reserved_.contains(counters)) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(reserved_[counters], heap().Allocate(LaneFlags::Bytes(counters)));
    return absl::OkStatus();
  }

  void Publish(int lane, const Descriptor& descriptor) override {
    LaneFlags& flags = Flags(rank_, lane);
    for (int64_t i = 0; i < flags.counter_count; ++i) {
      flags.Counter(descriptor.sequence, static_cast<int>(i)).store(0, std::memory_order_relaxed);
    }
    Slot& slot = flags.At(descriptor.sequence);
    slot.descriptor = descriptor;
    slot.claimed.store(0, std::memory_order_relaxed);
    slot.published.store(descriptor.sequence, std::memory_order_release);
  }

  std::optional<Descriptor> Peek(int lane, int peer, uint64_t sequence) const override {
    LaneFlags* flags = Find(peer, lane);
    if (flags == nullptr) return std::nullopt;
    const Slot& slot = flags->At(sequence);
    if (slot.published.load(std::memory_order_acquire) != sequence) return std::nullopt;
    return slot.descriptor;
  }

  void SetCounter(int lane, uint64_t sequence, int index, int64_t value) override {
    Flags(rank_, lane).Counter(sequence, index).store(value, std::memory_order_release);
  }
  int64_t Counter(int lane, int peer, uint64_t sequence, int index) const override {
    return Flags(peer, lane).Counter(sequence, index).load(std::memory_order_acquire);
  }

  // Relaxed: a claim decides which rank reduces a piece. It does not order data.
  std::optional<int64_t> ClaimPiece(int lane, int peer, uint64_t sequence, int64_t count) override {
    if (AllPiecesClaimed(lane, peer, sequence, count)) return std::nullopt;
    const int64_t piece = Flags(peer, lane).At(sequence).claimed.fetch_add(1, std::memory_order_relaxed);
    return piece < count ? std::optional(piece) : std::nullopt;
  }
  bool AllPiecesClaimed(int lane, int peer, uint64_t sequence, int64_t count) const override {
    return Flags(peer, lane).At(sequence).claimed.load(std::memory_order_relaxed) >= count;
  }

  void Release(int lane, uint64_t sequence) override {
    Flags(rank_, lane).consumed.store(sequence, std::memory_order_release);
  }
  uint64_t Consumed(int lane, int peer) const override {
    const LaneFlags* flags = Find(peer, lane);
    return flags == nullptr ? 0 : flags->consumed.load(std::memory_order_acquire);
  }

  void SendMessage(int peer, std::string_view bytes) override {
    WEFT_CHECK(bytes.size() <= Mailbox::kMaxBytes, "a message to a rank of the node is too long");
    Rank& rank = RankOf(peer);
    if (!rank.unsent.empty() || !rank.outgoing->Write(bytes)) rank.unsent.emplace_back(bytes);
    Ring(peer);
  }
  bool FlushMessages() override {
    bool any_unsent = false;
    for (auto& [peer, rank] : peers_) {
      const bool had_unsent = !rank.unsent.empty();
      while (!rank.unsent.empty() && rank.outgoing->Write(rank.unsent.front())) rank.unsent.pop_front();
      any_unsent |= !rank.unsent.empty();
      if (had_unsent) Ring(peer);
    }
    return any_unsent;
  }
  std::optional<Message> ReceiveMessage() override {
    for (auto& [peer, rank] : peers_) {
      const bool rings = rank.incoming->MayHoldBackWriter();
      std::optional<std::string> bytes = rank.incoming->Read();
      if (!bytes) continue;
      if (rings) Ring(peer);
      return Message{peer, *std::move(bytes)};
    }
    return std::nullopt;
  }

  void PublishFailure(const FailureNotice& notice) override {
    FailureSlot& failure = own_->failure;
    const absl::Status& cause = notice.cause;
    if (failure.code.load(std::memory_order_relaxed) != 0) return;
    const size_t length = std::min(cause.message().size(), FailureSlot::kTextBytes - 1);
    std::memcpy(failure.text.data(), cause.message().data(), length);
    failure.text[length] = '\0';
    failure.rank = notice.rank;
    failure.code.store(static_cast<uint32_t>(cause.code()), std::memory_order_release);
    for (const auto& [peer, known] : peers_) Ring(peer);
  }
  std::optional<FailureNotice> ReadFailure() const override {
    for (const auto& [peer, known] : peers_) {
      const FailureSlot& failure = known.flags->failure;
      const uint32_t code = failure.code.load(std::memory_order_acquire);
      if (code == 0) continue;
      return FailureNotice{failure.rank,
                           absl::Status(static_cast<absl::StatusCode>(code), failure.text.data())};
    }
    return std::nullopt;
  }

  void PublishHeartbeat() override {
    const uint64_t heartbeats = own_->heartbeats.load(std::memory_order_relaxed);
    own_->heartbeats.store(heartbeats + 1, std::memory_order_relaxed);
  }
  uint64_t Heartbeats(int peer) const override {
    return RankOf(peer).flags->heartbeats.load(std::memory_order_relaxed);
  }

  void Reset() override {
    own_->failure.code.store(0, std::memory_order_relaxed);
    for (auto& [peer, rank] : peers_) {
      rank.unsent.clear();
      rank.outgoing->ResetWriter();
      rank.incoming->ResetReader();
    }
    for (int lane = 0; lane < kMaxLanes; ++lane) {
      if (EntryOf(rank_, *own_, lane) == nullptr) {
        lane += kBlockLanes - 1;
        continue;
      }
      LaneFlags* flags = AddressOfFlags(rank_, *own_, lane);
      if (flags == nullptr) continue;
      flags->consumed.store(0, std::memory_order_relaxed);
      for (Slot& slot : flags->slots) slot.published.store(0, std::memory_order_relaxed);
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
    RankFlags& flags = *RankOf(peer).flags;
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
  struct Rank {
    RankFlags* flags = nullptr;
    Mailbox* outgoing = nullptr;  // Messages from this rank; null for this rank itself.
    Mailbox* incoming = nullptr;
    // Guarded by the core's lock.
    std::deque<std::string> unsent = {};  // Messages that found the mailbox full.
    std::vector<LaneFlags*> lanes = {};   // By lane; null until found.
  };

  Rank& RankOf(int peer) const {
    if (peer == rank_) return self_;
    const auto it = peers_.find(peer);
    WEFT_CHECK(it != peers_.end(), "a NodeLink was asked for the flags of a rank of another node");
    return it->second;
  }
  // The lane's entry in its block. Null if `peer` has opened no lane of the block.
  std::atomic<uint64_t>* EntryOf(int peer, const RankFlags& flags, int lane) const {
    const uint64_t offset =
        flags.blocks[static_cast<size_t>(lane / kBlockLanes)].load(std::memory_order_acquire);
    if (offset == 0) return nullptr;
    auto& block = *reinterpret_cast<LaneBlock*>(heap().Resolve({peer, offset - 1}));
    return &block[static_cast<size_t>(lane % kBlockLanes)];
  }
  // Null if `peer` has not opened the lane.
  LaneFlags* AddressOfFlags(int peer, const RankFlags& flags, int lane) const {
    const std::atomic<uint64_t>* entry = EntryOf(peer, flags, lane);
    const uint64_t offset = entry == nullptr ? 0 : entry->load(std::memory_order_acquire);
    return offset == 0 ? nullptr : reinterpret_cast<LaneFlags*>(heap().Resolve({peer, offset - 1}));
  }
  LaneFlags* Find(int peer, int lane) const {
    Rank& rank = RankOf(peer);
    const auto index = static_cast<size_t>(lane);
    if (index >= rank.lanes.size()) rank.lanes.resize(index + 1, nullptr);
    if (rank.lanes[index] == nullptr) rank.lanes[index] = AddressOfFlags(peer, *rank.flags, lane);
    return rank.lanes[index];
  }
  LaneFlags& Flags(int peer, int lane) const {
    LaneFlags* flags = Find(peer, lane);
    WEFT_CHECK(flags != nullptr, "a NodeLink was asked for the flags of a lane that is not open");
    return *flags;
  }

  int rank_;
  int position_;
  RankFlags* own_;
  Mailbox* mailboxes_;
  std::map<int, std::byte*> reserved_;   // Memory for flags, by number of counters.
  std::byte* reserved_block_ = nullptr;  // Memory for the next block of lanes.
  mutable Rank self_;
  mutable absl::flat_hash_map<int, Rank> peers_;  // Local peers by bootstrap rank.
};

}  // namespace

absl::StatusOr<std::unique_ptr<NodeLink>> MakeSharedMemoryLink(Bootstrap& bootstrap, NodeHeap& heap,
                                                               absl::Duration timeout) {
  const std::vector<int> ranks = bootstrap.node_map().RanksOf(bootstrap.node());
  const absl::StatusOr<std::byte*> flags = heap.Allocate(sizeof(RankFlags));
  const absl::StatusOr<std::byte*> boxes = heap.Allocate(ranks.size() * sizeof(Mailbox));
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, flags.ok() ? boxes.status() : flags.status(), timeout));
  auto* mailboxes = reinterpret_cast<Mailbox*>(*boxes);
  for (size_t i = 0; i < ranks.size(); ++i) new (mailboxes + i) Mailbox;
  const auto position_of = [&](int rank) {
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  auto link = std::make_unique<SharedMemoryLink>(heap, bootstrap.rank(), position_of(bootstrap.rank()),
                                                 *flags, mailboxes);
  const uint64_t offset = heap.AddressOf(link->own())->offset;
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<std::string> offsets,
      ExchangeBlobs(bootstrap, "flags of an engine",
                    std::string(reinterpret_cast<const char*>(&offset), sizeof(offset)), timeout));
  for (const int peer : ranks) {
    if (peer == bootstrap.rank()) continue;
    uint64_t peer_offset = 0;
    const std::string& theirs = offsets[static_cast<size_t>(peer)];
    WEFT_CHECK(theirs.size() == sizeof(peer_offset), "a peer sent an offset of another size");
    std::memcpy(&peer_offset, theirs.data(), sizeof(peer_offset));
    link->AddPeer(peer, position_of(peer), reinterpret_cast<RankFlags*>(heap.Resolve({peer, peer_offset})));
  }
  return link;
}

}  // namespace weft
