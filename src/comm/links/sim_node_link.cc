#include "src/comm/links/sim_node_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include <absl/container/flat_hash_map.h>

#include "src/comm/links/mailbox.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"

namespace weft {
namespace {

struct Slot {
  uint64_t published = 0;
  Descriptor descriptor;
  absl::flat_hash_map<int, int64_t> counters;  // Counters that are not 0, by index.
  int64_t claimed = 0;                         // Used only in the owner's flags: claims are visible at once.
};

struct LaneFlags {
  uint64_t consumed = 0;
  std::array<Slot, NodeLink::kSlots> slots;
  Slot& At(uint64_t sequence) { return slots[sequence % NodeLink::kSlots]; }
};

// A store that all ranks of a node may see. See Note [Late flags].
struct SharedStore {
  int64_t made_ns;
  absl::flat_hash_map<int, int64_t> visible_ns;  // By rank.
};
// See Note [Arrivals].
struct Gate {
  int arrived = 0;
  uint64_t hashes = 0;
  std::optional<SharedStore> all_arrived;
  int consumed = 0;
  std::deque<std::pair<int64_t, SharedStore>> words;
};
struct Gates {
  std::array<Gate, NodeLink::kSlots> slots;
  std::deque<std::pair<uint64_t, SharedStore>> consumed_by_all;
  Gate& At(uint64_t sequence) { return slots[sequence % NodeLink::kSlots]; }
};

// Flags of one rank, as this rank or a peer sees them.
struct RankFlags {
  std::map<int, LaneFlags> lanes;
  std::optional<NodeLink::FailureNotice> failure;
  std::deque<std::string> messages;  // To the rank that sees these flags.
};
// A store to the flags of a rank. All peers share it.
using Store = std::shared_ptr<const std::function<void(RankFlags&)>>;

// The flags of a peer that are visible to this rank, and the stores that are not visible yet.
struct PeerView {
  struct Pending {
    int64_t visible_ns;
    int64_t made_ns;
    Store store;
  };
  RankFlags visible;
  std::deque<Pending> pending;  // In the order of the stores.
  int64_t last_visible_ns = 0;
};

// State of a rank that its peers share. It outlives the rank's link: stores may become visible, and the
// doorbell may ring, afterwards.
struct RankState {
  int rank;
  RankFlags own;
  std::map<int, Gates> gates;                // By lane, of groups whose host this rank is.
  absl::flat_hash_map<int, PeerView> views;  // By local peer.
  std::atomic<uint32_t> doorbell{0};
  uint64_t heartbeats = 0;  // Visible to peers at once.
  Runtime* runtime;
};

class SimNodeLink final : public NodeLink {
 public:
  SimNodeLink(NodeHeap& heap, Runtime& runtime, std::shared_ptr<RankState> state)
      : NodeLink(heap), runtime_(runtime), simulation_(*runtime.simulation()), state_(std::move(state)) {}

  void AddPeer(const std::shared_ptr<RankState>& peer) {
    peers_.push_back(peer);
    state_->views[peer->rank];
  }

  absl::Status OpenLane(int /*lane*/, int /*counters*/) override { return absl::OkStatus(); }
  absl::Status ReserveLane(int /*counters*/) override { return absl::OkStatus(); }

  void Publish(int lane, const Descriptor& descriptor) override {
    Apply([lane, descriptor](RankFlags& flags) {
      flags.lanes[lane].At(descriptor.sequence) = {descriptor.sequence, descriptor, {}, 0};
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

  // Counts are read-modify-writes: the last rank sees all stores of the others, and whoever sees its count
  // does.
  std::optional<bool> Arrive(const Meeting& meeting, uint64_t sequence, uint64_t hash) override {
    Gate& gate = GatesOf(meeting).At(sequence);
    gate.hashes += hash;
    if (++gate.arrived != meeting.ranks) return false;
    gate.all_arrived = ShareNow();
    return true;
  }
  std::optional<bool> HaveArrived(const Meeting& meeting, uint64_t sequence, uint64_t hash) const override {
    const Gate& gate = GatesOf(meeting).At(sequence);
    if (!gate.all_arrived || !Sees(*gate.all_arrived)) return std::nullopt;
    return gate.hashes == hash * static_cast<uint64_t>(meeting.ranks);
  }
  bool Consume(const Meeting& meeting, uint64_t sequence) override {
    Gates& gates = GatesOf(meeting);
    if (++gates.At(sequence).consumed != meeting.ranks) return false;
    gates.At(sequence) = {};
    gates.consumed_by_all.emplace_back(sequence, ShareNow());
    if (gates.consumed_by_all.size() > 2 * kSlots) gates.consumed_by_all.pop_front();
    return true;
  }
  uint64_t ConsumedByAll(const Meeting& meeting) const override {
    return LastSeen(GatesOf(meeting).consumed_by_all);
  }
  void SetWord(const Meeting& meeting, uint64_t sequence, int64_t value) override {
    GatesOf(meeting).At(sequence).words.emplace_back(value, ShareNow());
  }
  int64_t Word(const Meeting& meeting, uint64_t sequence) const override {
    return LastSeen(GatesOf(meeting).At(sequence).words);
  }

  void Release(int lane, uint64_t sequence) override {
    Apply([=](RankFlags& flags) { flags.lanes[lane].consumed = sequence; });
  }
  uint64_t Consumed(int lane, int peer) const override { return VisibleFlags(peer).lanes[lane].consumed; }

  void SendMessage(int peer, std::string_view bytes) override {
    WEFT_CHECK(bytes.size() <= Mailbox::kMaxBytes, "a message to a rank of the node is too long");
    const Store store = std::make_shared<const std::function<void(RankFlags&)>>(
        [message = std::string(bytes)](RankFlags& flags) { flags.messages.push_back(message); });
    const auto found = std::find_if(peers_.begin(), peers_.end(),
                                    [&](const auto& candidate) { return candidate->rank == peer; });
    WEFT_CHECK(found != peers_.end(), "a NodeLink was asked for a message to a rank of another node");
    const int64_t visible_ns = VisibleAt(**found);
    (*found)->views[state_->rank].pending.push_back({visible_ns, simulation_.NowNs(), store});
    Ring(peer);
  }
  bool FlushMessages() override { return false; }
  std::optional<Message> ReceiveMessage() override {
    for (const auto& peer : peers_) {
      std::deque<std::string>& messages = VisibleFlags(peer->rank).messages;
      if (messages.empty()) continue;
      Message message{peer->rank, std::move(messages.front())};
      messages.pop_front();
      return message;
    }
    return std::nullopt;
  }

  void PublishFailure(const FailureNotice& notice) override {
    if (state_->own.failure) return;
    Apply([notice](RankFlags& flags) { flags.failure = notice; });
    for (const auto& peer : peers_) Ring(peer->rank);
  }
  std::optional<FailureNotice> ReadFailure() const override {
    for (const auto& peer : peers_) {
      if (!peer->own.failure) continue;  // A cheap check, because every poll calls this function.
      const RankFlags& flags = VisibleFlags(peer->rank);
      if (flags.failure) return flags.failure;
    }
    return std::nullopt;
  }

  void PublishHeartbeat() override { ++state_->heartbeats; }
  uint64_t Heartbeats(int peer) const override {
    for (const auto& other : peers_) {
      if (other->rank == peer) return other->heartbeats;
    }
    return state_->heartbeats;
  }

  // Visible to peers at once: no rank uses the flags during a reset, and a barrier follows it.
  void Reset() override {
    state_->own = {};
    state_->gates.clear();
    for (const auto& peer : peers_) {
      PeerView& view = peer->views[state_->rank];
      view.visible = {};
      view.pending.clear();
    }
  }

  // The doorbell is delayed like a flag: a rank that it wakes sees all stores before the ring.
  void Ring(int peer) override {
    if (peer == state_->rank) return RingNow(*state_);
    for (const auto& other : peers_) {
      if (other->rank == peer) simulation_.At(VisibleAt(*other), [other] { RingNow(*other); });
    }
  }
  uint32_t Doorbell() const override { return state_->doorbell.load(); }
  void Wait(uint32_t seen, int64_t timeout_ns) override {
    runtime_.SleepOn(state_->doorbell, seen, timeout_ns);
  }

 private:
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

  template <typename StoreTo>
  void Apply(const StoreTo& store_to) {
    store_to(state_->own);
    if (peers_.empty()) return;
    const Store store = std::make_shared<const std::function<void(RankFlags&)>>(store_to);
    for (const auto& peer : peers_) {
      const int64_t visible_ns = VisibleAt(*peer);
      peer->views[state_->rank].pending.push_back({visible_ns, simulation_.NowNs(), store});
    }
  }

  RankState& StateOf(int peer) const {
    if (peer == state_->rank) return *state_;
    const auto found = std::find_if(peers_.begin(), peers_.end(),
                                    [&](const auto& candidate) { return candidate->rank == peer; });
    WEFT_CHECK(found != peers_.end(), "a NodeLink was asked for the state of a rank of another node");
    return **found;
  }
  // The slot in the peer's own flags, without delay.
  Slot& SlotOf(int lane, int peer, uint64_t sequence) const {
    return StateOf(peer).own.lanes[lane].At(sequence);
  }
  Gates& GatesOf(const Meeting& meeting) const { return StateOf(meeting.host).gates[meeting.lane]; }

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
    for (auto& [peer, view] : state_->views) {
      while (!view.pending.empty() && view.pending.front().made_ns <= store.made_ns) ShowFirst(view);
    }
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
  static void ShowFirst(PeerView& view) {
    (*view.pending.front().store)(view.visible);
    view.pending.pop_front();
  }

  RankFlags& VisibleFlags(int peer) const {
    if (peer == state_->rank) return state_->own;
    const auto found = state_->views.find(peer);
    WEFT_CHECK(found != state_->views.end(), "a NodeLink was asked for the flags of a rank of another node");
    PeerView& view = found->second;
    while (!view.pending.empty() && view.pending.front().visible_ns <= simulation_.NowNs()) {
      ShowFirst(view);
    }
    return view.visible;
  }

  Runtime& runtime_;
  Simulation& simulation_;
  std::shared_ptr<RankState> state_;
  std::vector<std::shared_ptr<RankState>> peers_;  // Local peers.
};

}  // namespace

absl::StatusOr<std::unique_ptr<NodeLink>> MakeSimNodeLink(Bootstrap& bootstrap, NodeHeap& heap,
                                                          absl::Duration timeout) {
  auto state = std::make_shared<RankState>();
  state->rank = bootstrap.rank();
  state->runtime = &bootstrap.runtime();
  auto link = std::make_unique<SimNodeLink>(heap, bootstrap.runtime(), state);
  // All ranks are in one process: they exchange addresses of their shared pointers. Each pointer stays valid
  // until the second gather below has completed.
  const std::shared_ptr<RankState>* own = &state;
  WEFT_ASSIGN_OR_RETURN(
      std::vector<std::string> addresses,
      ExchangeBlobs(bootstrap, "flags of an engine",
                    std::string(reinterpret_cast<const char*>(&own), sizeof(own)), timeout));
  for (const int peer : bootstrap.node_map().RanksOf(bootstrap.node())) {
    if (peer == bootstrap.rank()) continue;
    const std::shared_ptr<RankState>* theirs = nullptr;
    std::memcpy(&theirs, addresses[static_cast<size_t>(peer)].data(), sizeof(theirs));
    link->AddPeer(*theirs);
  }
  addresses = {};  // All ranks wait in the next exchange.
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::OkStatus(), timeout));
  return link;
}

}  // namespace weft
