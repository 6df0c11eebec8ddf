#include "src/comm/links/shared_memory_link.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "src/comm/base/named_ranks.h"
#include "src/comm/links/mailbox.h"
#include "src/comm/links/node_flags.h"
#include "weft/core/futex.h"
#include "weft/core/status.h"

namespace weft {
namespace {

using shared_memory::Arrivals;
using shared_memory::FailureSlot;
using shared_memory::kBlockLanes;
using shared_memory::LaneBlock;
using shared_memory::LaneFlags;
using shared_memory::RankFlags;
using shared_memory::Slot;

class SharedMemoryLink final : public NodeLink {
 public:
  // `node_ranks`: all ranks of the node, ascending. `position` is that of the rank among them.
  SharedMemoryLink(NodeHeap& heap, const std::vector<int>& node_ranks, int position, std::byte* flags,
                   Mailbox* mailboxes)
      : NodeLink(heap),
        rank_(node_ranks[static_cast<size_t>(position)]),
        position_(position),
        own_(new (flags) RankFlags),
        first_(own_),
        mailboxes_(mailboxes),
        self_{own_},
        first_rank_(node_ranks.front()),
        by_rank_(static_cast<size_t>(node_ranks.back() - node_ranks.front()) + 1, nullptr) {
    own_->mailboxes = heap.AddressOf(mailboxes)->offset;
    by_rank_[static_cast<size_t>(rank_ - first_rank_)] = &self_;
  }
  // The flags stay allocated in the node heap: a peer that has just released its last operation may still
  // ring the doorbell.
  ~SharedMemoryLink() override { own_->is_closed.store(true, std::memory_order_relaxed); }

  // `position` is that of the peer in the node.
  void AddPeer(int peer, int position, RankFlags* flags) {
    auto* incoming = reinterpret_cast<Mailbox*>(heap().Resolve({peer, flags->mailboxes}));
    peers_[peer] = {flags, mailboxes_ + position, incoming + position_};
    by_rank_[static_cast<size_t>(peer - first_rank_)] = &peers_[peer];
    if (position == 0) first_ = flags;
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
    slot.finished.store(0, std::memory_order_relaxed);
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
  void FinishPiece(int lane, int peer, uint64_t sequence) override {
    Flags(peer, lane).At(sequence).finished.fetch_add(1, std::memory_order_release);
  }
  int64_t FinishedPieces(int lane, int peer, uint64_t sequence) const override {
    return Flags(peer, lane).At(sequence).finished.load(std::memory_order_acquire);
  }

  std::optional<Arrived> Arrive(const LocalGroup& group, uint64_t sequence, uint64_t hash) override {
    LaneFlags* flags = Find(group.leader, group.lane);
    if (flags == nullptr) return std::nullopt;
    const uint64_t added = Arrivals::Arrival(hash);
    const uint64_t before = flags->ArrivalsOf(sequence).arrived.fetch_add(added, std::memory_order_acq_rel);
    return Arrivals::Compare(before + added, group.ranks, hash);
  }
  Arrived HaveArrived(const LocalGroup& group, uint64_t sequence, uint64_t hash) const override {
    const Arrivals& arrivals = Flags(group.leader, group.lane).ArrivalsOf(sequence);
    return Arrivals::Compare(arrivals.arrived.load(std::memory_order_acquire), group.ranks, hash);
  }
  bool Consume(const LocalGroup& group, uint64_t sequence) override {
    LaneFlags& flags = Flags(group.leader, group.lane);
    Arrivals& arrivals = flags.ArrivalsOf(sequence);
    if (arrivals.consumed.fetch_add(1, std::memory_order_acq_rel) + 1 != group.ranks) return false;
    arrivals.Clear();
    flags.consumed_by_all.store(sequence, std::memory_order_release);
    return true;
  }
  uint64_t ConsumedByAll(const LocalGroup& group) const override {
    const LaneFlags* flags = Find(group.leader, group.lane);
    return flags == nullptr ? 0 : flags->consumed_by_all.load(std::memory_order_acquire);
  }
  void SetWord(const LocalGroup& group, uint64_t sequence, int64_t value) override {
    Flags(group.leader, group.lane).ArrivalsOf(sequence).word.store(value, std::memory_order_release);
  }
  int64_t Word(const LocalGroup& group, uint64_t sequence) const override {
    return Flags(group.leader, group.lane).ArrivalsOf(sequence).word.load(std::memory_order_acquire);
  }

  int64_t AddToWord(const LocalGroup& group, uint64_t sequence, int64_t value) override {
    Arrivals& arrivals = Flags(group.leader, group.lane).ArrivalsOf(sequence);
    return arrivals.word.fetch_add(value, std::memory_order_acq_rel) + value;
  }

  void Release(int lane, uint64_t sequence) override {
    Flags(rank_, lane).consumed.store(sequence, std::memory_order_release);
  }
  uint64_t Consumed(int lane, int peer) const override {
    const LaneFlags* flags = Find(peer, lane);
    return flags == nullptr ? 0 : flags->consumed.load(std::memory_order_acquire);
  }

  std::optional<Mail> ReceiveMail() override {
    if (own_->mail.load(std::memory_order_acquire) == received_) return std::nullopt;
    for (auto& [peer, rank] : peers_) {
      const bool rings = rank.incoming->MayHoldBackWriter();
      std::optional<std::string> bytes = rank.incoming->Read();
      if (!bytes) continue;
      ++received_;
      if (rings) Ring(peer);
      return Mail{peer, *std::move(bytes)};
    }
    return std::nullopt;
  }

  void PublishFailure(const FailureNotice& notice) override {
    FailureSlot& failure = own_->failure;
    const absl::Status& cause = notice.cause;
    if (failure.code.load(std::memory_order_relaxed) != 0) return;
    const std::string_view text = CutText(ToStd(cause.message()), FailureSlot::kTextBytes - 1);
    text.copy(failure.text.data(), text.size());
    failure.text[text.size()] = '\0';
    failure.rank = notice.rank;
    failure.code.store(static_cast<uint32_t>(cause.code()), std::memory_order_release);
    first_->failures.fetch_add(1, std::memory_order_release);
    for (const auto& [peer, known] : peers_) Ring(peer);
  }
  std::optional<FailureNotice> ReadFailure() const override {
    if (first_->failures.load(std::memory_order_acquire) == 0) return std::nullopt;
    for (const auto& [peer, known] : peers_) {
      const FailureSlot& failure = known.flags->failure;
      const uint32_t code = failure.code.load(std::memory_order_acquire);
      if (code == 0) continue;
      const absl::string_view text(failure.text.data(), strnlen(failure.text.data(), failure.text.size()));
      return FailureNotice{failure.rank, absl::Status(static_cast<absl::StatusCode>(code), text)};
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
    if (own_->failure.code.exchange(0, std::memory_order_relaxed) != 0)
      first_->failures.fetch_sub(1, std::memory_order_relaxed);
    own_->mail.store(0, std::memory_order_relaxed);
    received_ = 0;
    DropUnsentMail();
    for (auto& [peer, rank] : peers_) {
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
      for (Arrivals& arrivals : flags->arrivals) arrivals.Clear();
      flags->consumed_by_all.store(0, std::memory_order_relaxed);
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
  void RingIfAwake(int peer) override {
    RankOf(peer).flags->doorbell.fetch_add(1, std::memory_order_seq_cst);
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
    std::vector<LaneFlags*> lanes = {};  // By lane; null until found. Guarded by the core's lock.
  };

  bool WriteMail(int peer, std::string_view bytes) override {
    const Rank& rank = RankOf(peer);
    if (rank.flags->is_closed.load(std::memory_order_relaxed)) return true;
    if (!rank.outgoing->Write(bytes)) return false;
    rank.flags->mail.fetch_add(1, std::memory_order_release);
    return true;
  }
  Rank& RankOf(int peer) const {
    const auto index = static_cast<size_t>(peer - first_rank_);
    WEFT_CHECK(index < by_rank_.size() && by_rank_[index] != nullptr,
               "a NodeLink was asked for the flags of a rank of another node");
    return *by_rank_[index];
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
  RankFlags* first_;  // Of the node's first rank.
  Mailbox* mailboxes_;
  uint64_t received_ = 0;                // Messages that were read from mailboxes.
  std::map<int, std::byte*> reserved_;   // Memory for flags, by number of counters.
  std::byte* reserved_block_ = nullptr;  // Memory for the next block of lanes.
  Rank self_;
  std::map<int, Rank> peers_;  // Local peers by bootstrap rank.
  int first_rank_;             // The node's lowest bootstrap rank.
  // By bootstrap rank, from first_rank_ on: self_ or one of peers_. Null: a rank of another node.
  std::vector<Rank*> by_rank_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NodeLink>> MakeSharedMemoryLink(Bootstrap& bootstrap, NodeHeap& heap,
                                                               absl::Duration timeout) {
  const std::vector<int> ranks = bootstrap.node_map().RanksOf(bootstrap.node());
  if (ranks.size() > Arrivals::kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("a node has ", ranks.size(), " ranks; an engine takes at most ", Arrivals::kMaxRanks));
  }
  const absl::StatusOr<std::byte*> flags = heap.Allocate(sizeof(RankFlags));
  const absl::StatusOr<std::byte*> boxes = heap.Allocate(ranks.size() * sizeof(Mailbox));
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, flags.ok() ? boxes.status() : flags.status(), timeout));
  auto* mailboxes = reinterpret_cast<Mailbox*>(*boxes);
  for (size_t i = 0; i < ranks.size(); ++i) new (mailboxes + i) Mailbox;
  const auto position_of = [&](int rank) {
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  auto link =
      std::make_unique<SharedMemoryLink>(heap, ranks, position_of(bootstrap.rank()), *flags, mailboxes);
  const uint64_t offset = heap.AddressOf(link->own())->offset;
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<std::string> offsets,
      ExchangeBlobs(bootstrap, "flags of an engine",
                    std::string(reinterpret_cast<const char*>(&offset), sizeof(offset)), timeout));
  for (size_t peer = 0; peer < offsets.size(); ++peer) {
    if (offsets[peer].size() == sizeof(offset)) continue;
    return absl::InternalError(absl::StrCat("rank ", peer, " has sent the place of its flags in ",
                                            offsets[peer].size(), " bytes, expected ", sizeof(offset),
                                            kSameVersionRemedy));
  }
  for (const int peer : ranks) {
    if (peer == bootstrap.rank()) continue;
    uint64_t peer_offset = 0;
    std::memcpy(&peer_offset, offsets[static_cast<size_t>(peer)].data(), sizeof(peer_offset));
    if (!heap.Holds({peer, peer_offset}, sizeof(RankFlags))) {
      return absl::InternalError(absl::StrCat("rank ", peer, " has sent the place ", peer_offset,
                                              " of its flags, which is not in node memory",
                                              kSameVersionRemedy));
    }
    link->AddPeer(peer, position_of(peer), reinterpret_cast<RankFlags*>(heap.Resolve({peer, peer_offset})));
  }
  return link;
}

}  // namespace weft
