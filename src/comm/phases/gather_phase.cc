#include "src/comm/phases/gather_phase.h"

#include <algorithm>
#include <utility>

#include "src/comm/base/copy_bytes.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kGatherChannel = 0;

}  // namespace

GatherPhase::GatherPhase(const OperationContext& context, const PartLayout& parts, DType dtype,
                         int64_t slice_elements, const Memory& memory, Kind kind)
    : kind_(kind),
      parts_(parts),
      dtype_(dtype),
      element_bytes_(SizeOf(dtype)),
      slice_elements_(slice_elements),
      nontemporal_(ShouldBypassCaches(static_cast<size_t>(BytesOf(parts.total(), dtype)) *
                                      (kind == Kind::kShared ? 1 : 1 + memory.peers.size()))),
      encoding_(WireEncodingOf(context, dtype)),
      slots_(RingFor(nullptr).SlotBytes(SlicingOf(context.placement.me()))) {
  if (kind == Kind::kShared) {
    PlanShared(context, memory);
  } else {
    PlanLocal(context, memory);
  }
  if (context.record->descriptor.kind != OpKind::kAllGatherDelta) return;
  delta_base_ = {memory.delta_base, element_bytes_};
  base_update_.emplace(SlicingOf(context.placement.me()), dtype, OwnPart(context.placement, memory),
                       *delta_base_, /*nontemporal=*/true);
}

absl::StatusOr<std::unique_ptr<GatherPhase>> GatherPhase::Create(const OperationContext& context,
                                                                 const PartLayout& parts, DType dtype,
                                                                 int64_t slice_elements, const Memory& memory,
                                                                 Kind kind) {
  std::unique_ptr<GatherPhase> phase(new GatherPhase(context, parts, dtype, slice_elements, memory, kind));
  WEFT_RETURN_IF_ERROR(phase->PlanWire(context, memory));
  for (Pull& pull : phase->pulls_) phase->open_pulls_.push_back(&pull);
  for (Relay& relay : phase->relays_) phase->open_relays_.push_back(&relay);
  return phase;
}

SliceMemory GatherPhase::Submitted(const std::byte* own_part, const std::byte* output, int member) const {
  if (parts_.ranges != nullptr && own_part == output) return PartOf(output, member);
  // The part is only read. SliceMemory is mutable because it also describes targets.
  return {const_cast<std::byte*>(own_part), element_bytes_};
}

void GatherPhase::AddPull(const OperationContext& context, SliceMemory source, SliceMemory target, int member,
                          int source_member, int counter) {
  const GroupPlacement& placement = context.placement;
  const int64_t elements = parts_.counts[static_cast<size_t>(member)];
  if (IsSameMemory(source, target) || elements == 0) return;
  const bool is_awaited = kind_ == Kind::kShared && placement.domain_size() > 1;
  pulls_.push_back({CopyStream(SlicingOf(member), dtype_, source, target, nontemporal_), member,
                    placement.BootstrapRank(source_member), counter, !is_awaited});
  if (placement.IsInDomain(source_member)) return;
  pulls_.back().stream.SetCrossesDomains();
  context.counters.cross_domain_bytes += elements * static_cast<int64_t>(element_bytes_);
}

void GatherPhase::AddWatch(const OperationContext& context, int member, int writer) {
  if (SlicingOf(member).elements == 0) return;
  watches_.push_back({member, context.placement.BootstrapRank(writer)});
}

const PeerMemory& GatherPhase::Memory::PeerOf(int member) const {
  return *std::find_if(peers.begin(), peers.end(),
                       [&](const PeerMemory& candidate) { return candidate.member == member; });
}

void GatherPhase::PlanLocal(const OperationContext& context, const Memory& memory) {
  const GroupPlacement& placement = context.placement;
  const int me = placement.me();
  for (const PeerMemory& peer : memory.peers) {
    if (kind_ == Kind::kPushed) {
      AddWatch(context, peer.member, peer.member);
      continue;
    }
    AddPull(context, Submitted(peer.own_part, peer.output, peer.member), PartOf(memory.output, peer.member),
            peer.member, peer.member, -1);
  }
  AddPull(context, OwnPart(placement, memory), PartOf(memory.output, me), me, me, -1);
  for (int member = 0; member < placement.size(); ++member) {
    if (placement.IsLocal(member)) continue;
    const int leader = placement.PartLeader(placement.NodeOf(me), member);
    if (leader == me) continue;
    AddPull(context, PartOf(memory.PeerOf(leader).output, member), PartOf(memory.output, member), member,
            leader, member);
  }
}

void GatherPhase::PlanShared(const OperationContext& context, const Memory& memory) {
  const GroupPlacement& placement = context.placement;
  const int me = placement.me();
  AddPull(context, OwnPart(placement, memory), PartOf(memory.output, me), me, me, -1);
  for (const PeerMemory& peer : memory.peers) {
    const int writer = placement.DomainLeader(peer.member);
    if (placement.IsInDomain(peer.member)) {
      const SliceMemory part = Submitted(peer.own_part, memory.output, peer.member);
      if (!IsSameMemory(part, PartOf(memory.output, peer.member))) AddWatch(context, peer.member, writer);
    } else if (writer == me) {
      AddPull(context, Submitted(peer.own_part, peer.output, peer.member), PartOf(memory.output, peer.member),
              peer.member, peer.member, -1);
    } else {
      AddWatch(context, peer.member, writer);
    }
  }
  for (int member = 0; member < placement.size(); ++member) {
    if (placement.IsLocal(member)) continue;
    const int receiver = placement.PartLeader(placement.NodeOf(me), member);
    const int writer = placement.DomainLeader(member);
    if (writer != me) {
      AddWatch(context, member, writer);
    } else if (receiver != me) {
      AddPull(context, PartOf(memory.PeerOf(receiver).output, member), PartOf(memory.output, member), member,
              receiver, member);
    }
  }
}

// An all-reduce needs no streams for empty parts: its ranks have compared descriptors in the reduce phase.
// See Note [Empty parts].
bool GatherPhase::UsesWire(int member) const {
  return kind_ != Kind::kPushed || SlicingOf(member).elements > 0;
}

absl::Status GatherPhase::PlanWire(const OperationContext& context, const Memory& memory) {
  const GroupPlacement& placement = context.placement;
  const int me = placement.me();
  const auto receives = [&](int member) {
    return !placement.IsLocal(member) && placement.PartLeader(placement.NodeOf(me), member) == me &&
           UsesWire(member);
  };
  std::vector<int> received;
  for (int member = 0; member < placement.size(); ++member) {
    if (receives(member)) received.push_back(member);
  }
  if (std::any_of(received.begin(), received.end(), [&](int member) { return RingBytes(member) > 0; }))
    ring_slices_ = RingSlices(context, static_cast<int64_t>(received.size()), RingUse::kUneven);
  size_t ring_bytes = 0;
  for (const int member : received) ring_bytes += RingBytes(member);
  if (ring_bytes > 0) {
    WEFT_ASSIGN_OR_RETURN(ring_, context.scratch.Acquire(ring_bytes));
  }
  std::byte* ring = ring_.data();
  for (int step = 1; step < placement.size(); ++step) {
    const int member = (me + step) % placement.size();
    if (placement.IsLocal(member)) continue;
    const CreditScheduler::Channel channel{context.record->lane, context.record->descriptor.sequence,
                                           placement.BootstrapRank(member), kGatherChannel};
    if (receives(member)) AddRelay(channel, member, memory.output, ring);
    if (placement.PartLeader(placement.NodeOf(member), me) == member && UsesWire(me)) {
      sends_.AddPart(channel, {SlicingOf(me), dtype_, OwnPart(placement, memory), encoding_, delta_base_},
                     slots_);
    }
  }
  for (Relay& relay : relays_) relay.stream.KeepPace(pace_);
  return absl::OkStatus();
}

size_t GatherPhase::RingBytes(int member) const {
  const bool is_direct = encoding_ == WireEncoding::kPlain && PartOf(nullptr, member).ranges.empty();
  return is_direct ? 0 : RingFor(nullptr).RingBytes(SlicingOf(member));
}

void GatherPhase::AddRelay(const CreditScheduler::Channel& channel, int member, std::byte* output,
                           std::byte*& ring) {
  const Slicing slicing = SlicingOf(member);
  const SliceMemory target = PartOf(output, member);
  const auto source =
      kind_ == Kind::kPushed ? ReceiveStream::Source::kProduced : ReceiveStream::Source::kReady;
  if (RingBytes(member) == 0) {
    relays_.push_back(
        {ReceiveStream(channel, WirePhase::kGather, slicing, target, source), std::nullopt, member});
    relays_.back().stream.ReceiveRuns();
    return;
  }
  const SliceMemory slices = RingFor(ring);
  ring += slices.RingBytes(slicing);
  const bool is_encoded = encoding_ != WireEncoding::kPlain;
  Relay& relay = relays_.emplace_back(
      Relay{ReceiveStream(channel, WirePhase::kGather, slicing, is_encoded ? slices : target, source),
            CopyStream::FromRing(slicing, dtype_, slices, target), member});
  if (!is_encoded) relay.stream.ReceiveInto(slices);
}

int64_t GatherPhase::AllWritable(int /*member*/) { return kAllSlices; }

bool GatherPhase::StepPulls(OperationContext& context, int64_t own_available, Writable writable) {
  bool advanced = false;
  const int own_rank = context.placement.BootstrapRank(context.placement.me());
  for (Pull* const open : open_pulls_) {
    Pull& pull = *open;
    if (pull.stream.finished()) continue;
    int64_t available = kAllSlices;
    if (pull.source == own_rank) {
      available = own_available;
    } else if (pull.counter >= 0) {
      available = context.CounterOfRank(pull.source, pull.counter);
    }
    advanced |= pull.stream.Step(context, std::min(available, writable(pull.member)));
  }
  return advanced;
}

absl::StatusOr<bool> GatherPhase::StepRelays(OperationContext& context, Writable writable) {
  const auto credit = [&](Relay* relay) -> absl::StatusOr<bool> {
    const int64_t limit = relay->unpack ? kAllSlices : writable(relay->member);
    WEFT_RETURN_IF_ERROR(relay->stream.AnnounceEmpty(context));
    return relay->stream.Credit(context, relay->done(), limit);
  };
  WEFT_ASSIGN_OR_RETURN(bool advanced, CreditInTurn(pace_, open_relays_, credit));
  for (Relay* const open : open_relays_) {
    Relay& relay = *open;
    if (relay.unpack) {
      advanced |= relay.unpack->Step(context, std::min(relay.stream.done(), writable(relay.member)));
    }
    if (relay.announced == relay.done()) continue;
    // Without several domains, peers wait for the whole part.
    if (kind_ == Kind::kShared && !context.placement.spans_domains() && !relay.finished()) continue;
    relay.announced = relay.done();
    context.AnnounceToLocalPeers(relay.member, relay.announced);
    advanced = true;
  }
  if (advanced) {
    std::erase_if(open_relays_,
                  [](const Relay* relay) { return relay->finished() && relay->announced == relay->done(); });
  }
  return advanced;
}

bool GatherPhase::ClosePulls(OperationContext& context) {
  bool advanced = false;
  std::erase_if(open_pulls_, [&](Pull* pull) {
    if (!pull->stream.finished()) return false;
    if (!std::exchange(pull->announced, true)) {
      context.AnnounceToLocalPeers(pull->member, pull->stream.done());
      advanced = true;
    }
    return true;
  });
  return advanced;
}

bool GatherPhase::StepWatches(OperationContext& context) {
  return std::erase_if(watches_, [&](const Watch& watch) {
           return context.CounterOfRank(watch.writer, watch.member) == SlicingOf(watch.member).slices();
         }) > 0;
}

absl::StatusOr<bool> GatherPhase::Step(OperationContext& context, int64_t own_available, Writable writable) {
  bool advanced = StepPulls(context, own_available, writable);
  advanced |= ClosePulls(context);
  advanced |= StepWatches(context);
  WEFT_ASSIGN_OR_RETURN(const bool relayed, StepRelays(context, writable));
  advanced |= relayed;
  WEFT_ASSIGN_OR_RETURN(const bool sent, sends_.Step(context, own_available));
  advanced |= sent;
  if (base_update_ && sends_.finished()) advanced |= base_update_->Step(context, own_available);
  return advanced;
}

bool GatherPhase::complete() const {
  return watches_.empty() &&
         std::all_of(open_pulls_.begin(), open_pulls_.end(),
                     [](const Pull* pull) { return pull->stream.finished() && pull->announced; }) &&
         std::all_of(open_relays_.begin(), open_relays_.end(), [](const Relay* r) { return r->finished(); });
}

bool GatherPhase::drained() const {
  return complete() && sends_.finished() && (!base_update_ || base_update_->finished());
}

void GatherPhase::AddAwaited(std::set<int>& ranks) const {
  for (const Relay* relay : open_relays_) {
    if (!relay->stream.finished()) ranks.insert(relay->stream.peer());
  }
  sends_.AddAwaited(ranks);
  for (const Pull* pull : open_pulls_) {
    if (!pull->stream.finished()) ranks.insert(pull->source);
  }
  for (const Watch& watch : watches_) ranks.insert(watch.writer);
}

}  // namespace weft
