#include "src/comm/links/sim_node_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "src/comm/links/mailbox.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"

namespace weft {
namespace {

// A store that all ranks of a node may see. See Note [Late flags].
struct SharedStore {
  int64_t made_ns;
  absl::flat_hash_map<int, int64_t> visible_ns;  // By rank.
};

struct Slot {
  uint64_t published = 0;
  Descriptor descriptor;
  absl::flat_hash_map<int, int64_t> counters;  // Counters that are not 0, by index.
  // Used only in the owner's flags.
  int64_t claimed = 0;  // Visible at once.
  std::vector<SharedStore> finished;
};

struct LaneFlags {
  uint64_t consumed = 0;
  std::array<Slot, NodeLink::kSlots> slots;
  Slot& At(uint64_t sequence) { return slots[sequence % NodeLink::kSlots]; }
};

// See Note [Arrivals].
struct Arrivals {
  int arrived = 0;
  uint64_t hashes = 0;
  std::optional<SharedStore> all_arrived;
  int consumed = 0;
  std::deque<std::pair<int64_t, SharedStore>> words;
};
struct LaneArrivals {
  std::array<Arrivals, NodeLink::kSlots> slots;
  std::deque<std::pair<uint64_t, SharedStore>> consumed_by_all;
  Arrivals& At(uint64_t sequence) { return slots[sequence % NodeLink::kSlots]; }
};

// Flags of one rank, as this rank or a peer sees them.
struct RankFlags {
  std::map<int, LaneFlags> lanes;
  std::optional<NodeLink::FailureNotice> failure;
  std::vector<std::string> messages;  // To the rank that sees these flags.
};
// A store to the flags of a rank. All peers share it.
using StoreTo = std::function<void(RankFlags&)>;
using Store = std::shared_ptr<const StoreTo>;

// The flags of a peer that are visible to this rank, and the stores that are not visible yet. There is one
// for each pair of ranks of a node: it takes little memory if this rank does not look at the flags of the
// peer.
struct PeerView {
  struct Pending {
    int64_t visible_ns;
    int64_t made_ns;
    Store store;
  };
  // Shows the stores that are visible at `now_ns`, and those made until `seen_ns`.
  void Show(int64_t now_ns, int64_t seen_ns) {
    size_t shown = 0;
    for (; shown < pending.size(); ++shown) {
      const Pending& next = pending[shown];
      if (next.visible_ns > now_ns && next.made_ns > seen_ns) break;
      (*next.store)(visible);
    }
    pending.erase(pending.begin(), pending.begin() + static_cast<int64_t>(shown));
  }

  RankFlags visible;
  std::vector<Pending> pending;  // In the order of the stores.
  uint64_t unread_messages = 0;  // Visible or not.
  int64_t last_visible_ns = 0;
};

// State of a rank that its peers share. It outlives the rank's link: stores may become visible, and the
// doorbell may ring, afterwards.
struct RankState : std::enable_shared_from_this<RankState> {
  int rank;
  RankFlags own;
  std::map<int, LaneArrivals> arrivals;      // By lane, of groups whose node leader this rank is.
  absl::flat_hash_map<int, PeerView> views;  // By local peer.
  int64_t seen_ns = 0;                       // This rank sees all stores of its node until this time.
  int unread_messages = 0;                   // To this rank, visible or not.
  int failures = 0;                          // Notices of the node. Used only in the state of its first rank.
  bool is_closed = false;                    // The rank's link was destroyed.
  std::atomic<uint32_t> doorbell{0};
  uint64_t heartbeats = 0;  // Visible to peers at once.
  Runtime* runtime;
};

class SimNodeLink final : public NodeLink {
 public:
  SimNodeLink(NodeHeap& heap, Runtime& runtime, std::shared_ptr<RankState> state)
      : NodeLink(heap), runtime_(runtime), simulation_(*runtime.simulation()), state_(std::move(state)) {}
  ~SimNodeLink() override { state_->is_closed = true; }
  void AddPeer(const std::shared_ptr<RankState>& peer) {
    peers_.push_back(peer);
    state_->views[peer->rank];
  }

  absl::Status OpenLane(int /*lane*/, int /*counters*/) override { return absl::OkStatus(); }
  absl::Status ReserveLane(int /*counters*/) override { return absl::OkStatus(); }

  void Publish(int lane, const Descriptor& descriptor) override {
    Apply([lane, descriptor](RankFlags& flags) {
      flags.lanes[lane].At(descriptor.sequence) = {descriptor.sequence, descriptor, {}, 0, {}};
    });
  }
  std::optional<Descriptor> Peek(int lane, int peer, uint64_t sequence) const override {
    const Slot& slot = VisibleFlags(peer).lanes[lane].At(sequence);
    if (slot.published != sequence) return std::nullopt;
    return slot.descriptor;
  }

  void SetCounter(int lane, uint64_t sequence, int index, int64_t value) override {
    Apply([=](RankFlags& flags) { flags.lanes[lane].At(sequence).counters[index] = value; });
  }
  int64_t Counter(int lane, int peer, uint64_t sequence, int index) const override {
    const auto& counters = VisibleFlags(peer).lanes[lane].At(sequence).counters;
    const auto found = counters.find(index);
    return found == counters.end() ? 0 : found->second;
  }

  std::optional<int64_t> ClaimPiece(int lane, int peer, uint64_t sequence, int64_t count) override {
    if (AllPiecesClaimed(lane, peer, sequence, count)) return std::nullopt;
    return SlotOf(lane, peer, sequence).claimed++;
  }
  bool AllPiecesClaimed(int lane, int peer, uint64_t sequence, int64_t count) const override {
    return SlotOf(lane, peer, sequence).claimed >= count;
  }
  void FinishPiece(int lane, int peer, uint64_t sequence) override {
    SlotOf(lane, peer, sequence).finished.push_back(ShareNow());
  }
  int64_t FinishedPieces(int lane, int peer, uint64_t sequence) const override {
    const std::vector<SharedStore>& finished = SlotOf(lane, peer, sequence).finished;
    return std::count_if(finished.begin(), finished.end(),
                         [this](const SharedStore& store) { return Sees(store); });
  }

  // Counts are read-modify-writes: the last rank sees all stores of the others, and whoever sees its count
  // does.
  std::optional<Arrived> Arrive(const LocalGroup& group, uint64_t sequence, uint64_t hash) override {
    Arrivals& arrivals = ArrivalsOf(group).At(sequence);
    arrivals.hashes += hash;
    if (++arrivals.arrived < group.ranks) return Arrived::kSome;
    if (!arrivals.all_arrived) arrivals.all_arrived = ShareNow();
    return Compare(arrivals, group, hash);
  }
  Arrived HaveArrived(const LocalGroup& group, uint64_t sequence, uint64_t hash) const override {
    const Arrivals& arrivals = ArrivalsOf(group).At(sequence);
    if (!arrivals.all_arrived || !Sees(*arrivals.all_arrived)) return Arrived::kSome;
    return Compare(arrivals, group, hash);
  }
  bool Consume(const LocalGroup& group, uint64_t sequence) override {
    LaneArrivals& arrivals = ArrivalsOf(group);
    if (++arrivals.At(sequence).consumed != group.ranks) return false;
    arrivals.At(sequence) = {};
    arrivals.consumed_by_all.emplace_back(sequence, ShareNow());
    if (arrivals.consumed_by_all.size() > 2 * kSlots) arrivals.consumed_by_all.pop_front();
    return true;
  }
  uint64_t ConsumedByAll(const LocalGroup& group) const override {
    return LastSeen(ArrivalsOf(group).consumed_by_all);
  }
  void SetWord(const LocalGroup& group, uint64_t sequence, int64_t value) override {
    ArrivalsOf(group).At(sequence).words.emplace_back(value, ShareNow());
  }
  int64_t Word(const LocalGroup& group, uint64_t sequence) const override {
    return LastSeen(ArrivalsOf(group).At(sequence).words);
  }
  int64_t AddToWord(const LocalGroup& group, uint64_t sequence, int64_t value) override {
    auto& words = ArrivalsOf(group).At(sequence).words;
    const int64_t sum = words.back().first + value;
    words.emplace_back(sum, ShareNow());
    return sum;
  }

  void Release(int lane, uint64_t sequence) override {
    Apply([=](RankFlags& flags) { flags.lanes[lane].consumed = sequence; });
  }
  uint64_t Consumed(int lane, int peer) const override { return VisibleFlags(peer).lanes[lane].consumed; }

  std::optional<Mail> ReceiveMail() override {
    if (state_->unread_messages == 0) return std::nullopt;  // A cheap check: every poll calls this function.
    for (const auto& peer : peers_) {
      std::vector<std::string>& messages = VisibleFlags(peer->rank).messages;
      if (messages.empty()) continue;
      Mail mail{peer->rank, std::move(messages.front())};
      messages.erase(messages.begin());
      --state_->unread_messages;
      const bool peer_may_wait = state_->views[peer->rank].unread_messages-- >= Mailbox::kEntries / 2;
      if (peer_may_wait) Ring(peer->rank);
      return mail;
    }
    return std::nullopt;
  }

  void PublishFailure(const FailureNotice& notice) override {
    if (state_->own.failure) return;
    Apply([notice](RankFlags& flags) { flags.failure = notice; });
    ++FirstOfNode().failures;
    for (const auto& peer : peers_) Ring(peer->rank);
  }
  std::optional<FailureNotice> ReadFailure() const override {
    if (FirstOfNode().failures == 0) return std::nullopt;  // A cheap check: every poll calls this function.
    for (const auto& peer : peers_) {
      if (!peer->own.failure) continue;
      const RankFlags& flags = VisibleFlags(peer->rank);
      if (flags.failure) return flags.failure;
    }
    return std::nullopt;
  }

  void PublishHeartbeat() override { ++state_->heartbeats; }
  uint64_t Heartbeats(int peer) const override { return StateOf(peer).heartbeats; }

  // Visible to peers at once: no rank uses the flags during a reset, and a barrier follows it.
  void Reset() override {
    state_->own = {};
    state_->arrivals.clear();
    state_->unread_messages = 0;
    state_->failures = 0;
    for (const auto& peer : peers_) {
      PeerView& view = peer->views[state_->rank];
      view.visible = {};
      view.pending.clear();
      view.unread_messages = 0;
    }
    DropUnsentMail();
  }

  // The doorbell is delayed like a flag: a rank that it wakes sees all stores before the ring.
  void Ring(int peer) override {
    if (peer == state_->rank) return RingNow(*state_);
    const std::shared_ptr<RankState>& other = *Find(peer);
    simulation_.At(VisibleAt(*other), [other] { RingNow(*other); });
  }
  // A simulated rank that sleeps wakes, too.
  void RingIfAwake(int peer) override { Ring(peer); }
  uint32_t Doorbell() const override { return state_->doorbell.load(); }
  void Wait(uint32_t seen, int64_t timeout_ns) override {
    runtime_.SleepOn(state_->doorbell, seen, timeout_ns);
  }

 private:
  bool WriteMail(int peer, std::string_view bytes) override {
    RankState& receiver = StateOf(peer);
    uint64_t& unread = receiver.views[state_->rank].unread_messages;
    if (receiver.is_closed) return true;
    if (unread == Mailbox::kEntries) return false;
    AddPending(receiver, std::make_shared<const StoreTo>([message = std::string(bytes)](RankFlags& flags) {
                 flags.messages.push_back(message);
               }));
    ++unread;
    ++receiver.unread_messages;
    return true;
  }
  // REQUIRES: all have arrived.
  static Arrived Compare(const Arrivals& arrivals, const LocalGroup& group, uint64_t hash) {
    if (arrivals.arrived > group.ranks) return Arrived::kTooMany;
    const bool are_equal = arrivals.hashes == hash * static_cast<uint64_t>(group.ranks);
    return are_equal ? Arrived::kAllEqual : Arrived::kUnequal;
  }
  static void RingNow(RankState& state) {
    state.doorbell.fetch_add(1);
    state.runtime->WakeAll(state.doorbell);
  }

  // Time at which a store made now becomes visible to a peer, in virtual nanoseconds.
  int64_t VisibleAt(RankState& peer) {
    PeerView& view = peer.views[state_->rank];
    const int64_t visible_ns =
        simulation_.NowNs() + simulation_.Delay(state_->rank, simulation_.options().flag_ns);
    view.last_visible_ns = std::max(view.last_visible_ns, visible_ns);
    return view.last_visible_ns;
  }

  template <typename Change>
  void Apply(const Change& change) {
    change(state_->own);
    if (peers_.empty()) return;
    const auto store = std::make_shared<const StoreTo>(change);
    for (const auto& peer : peers_) AddPending(*peer, store);
  }

  void AddPending(RankState& peer, const Store& store) {
    constexpr size_t kManyPending = 64;  // Of a peer that does not look at the flags of this rank.
    const int64_t visible_ns = VisibleAt(peer);
    PeerView& view = peer.views[state_->rank];
    view.pending.push_back({visible_ns, simulation_.NowNs(), store});
    if (view.pending.size() % kManyPending == 0) view.Show(simulation_.NowNs(), peer.seen_ns);
  }

  // The place of a local peer in peers_.
  std::vector<std::shared_ptr<RankState>>::const_iterator Find(int peer) const {
    const auto found = std::lower_bound(peers_.begin(), peers_.end(), peer,
                                        [](const auto& state, int rank) { return state->rank < rank; });
    WEFT_CHECK(found != peers_.end() && (*found)->rank == peer,
               "a NodeLink was asked for a rank of another node");
    return found;
  }
  RankState& FirstOfNode() const {
    return peers_.empty() || state_->rank < peers_.front()->rank ? *state_ : *peers_.front();
  }

  RankState& StateOf(int peer) const {
    if (peer == state_->rank) return *state_;
    return **Find(peer);
  }
  // The slot in the peer's own flags, without delay.
  Slot& SlotOf(int lane, int peer, uint64_t sequence) const {
    return StateOf(peer).own.lanes[lane].At(sequence);
  }
  LaneArrivals& ArrivalsOf(const LocalGroup& group) const {
    return StateOf(group.leader).arrivals[group.lane];
  }

  // A store of this rank to memory that the ranks of the node share. This rank has seen the counts of the
  // others before, and with them everything that they stored.
  SharedStore ShareNow() {
    SharedStore store{simulation_.NowNs(), {}};
    store.visible_ns[state_->rank] = store.made_ns;
    for (const auto& peer : peers_) store.visible_ns[peer->rank] = VisibleAt(*peer);
    Sees(store);
    return store;
  }
  // True if this rank sees the store. It then sees all that any rank stored before.
  bool Sees(const SharedStore& store) const {
    const auto visible = store.visible_ns.find(state_->rank);
    if (visible->second > simulation_.NowNs()) return false;
    state_->seen_ns = std::max(state_->seen_ns, store.made_ns);
    return true;
  }
  // The value of the last of these stores that this rank sees; 0 if it sees none.
  template <typename Value>
  Value LastSeen(const std::deque<std::pair<Value, SharedStore>>& stores) const {
    for (auto it = stores.rbegin(); it != stores.rend(); ++it) {
      if (Sees(it->second)) return it->first;
    }
    return 0;
  }
  RankFlags& VisibleFlags(int peer) const {
    if (peer == state_->rank) return state_->own;
    const auto found = state_->views.find(peer);
    WEFT_CHECK(found != state_->views.end(), "a NodeLink was asked for the flags of a rank of another node");
    found->second.Show(simulation_.NowNs(), state_->seen_ns);
    return found->second.visible;
  }

  Runtime& runtime_;
  Simulation& simulation_;
  std::shared_ptr<RankState> state_;
  std::vector<std::shared_ptr<RankState>> peers_;  // Local peers, ascending.
};

}  // namespace

absl::StatusOr<std::unique_ptr<NodeLink>> MakeSimNodeLink(Bootstrap& bootstrap, NodeHeap& heap,
                                                          absl::Duration timeout) {
  auto state = std::make_shared<RankState>();
  state->rank = bootstrap.rank();
  state->runtime = &bootstrap.runtime();
  auto link = std::make_unique<SimNodeLink>(heap, bootstrap.runtime(), state);
  // All ranks are in one process: they exchange the addresses of their states.
  constexpr size_t kPointerBytes = sizeof(void*);
  RankState* const own = state.get();
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<std::string> addresses,
      ExchangeBlobs(bootstrap, "flags of an engine",
                    std::string(reinterpret_cast<const char*>(&own), kPointerBytes), timeout));
  for (const int peer : bootstrap.node_map().RanksOf(bootstrap.node())) {
    if (peer == bootstrap.rank()) continue;
    RankState* theirs = nullptr;
    std::memcpy(&theirs, addresses[static_cast<size_t>(peer)].data(), kPointerBytes);
    link->AddPeer(theirs->shared_from_this());
  }
  return link;
}

}  // namespace weft
