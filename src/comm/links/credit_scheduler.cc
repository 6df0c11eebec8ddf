#include "src/comm/links/credit_scheduler.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "src/comm/codec/slice_codec.h"
#include "weft/core/status.h"

namespace weft {

CreditScheduler::CreditScheduler(WireLink& link, ControlMail& mail, TagLayout tags,
                                 const EngineOptions& options, EngineCounters& counters, TraceLog& trace,
                                 CreditRules rules)
    : link_(link),
      mail_(mail),
      tags_(tags),
      options_(options),
      rules_(rules),
      counters_(counters),
      trace_(trace),
      budget_(options.max_budget_bytes, link.has_rendezvous()) {}

absl::Status CreditScheduler::CheckLane(int lane, std::string_view name) const {
  if (lane < tags_.lanes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "lane ", ToAbsl(name), ": the transport has message tags up to ", link_.max_tag(), ", enough for ",
      tags_.lanes, " lanes between nodes of ", tags_.per_lane - 1, " ranks, and the index of this lane is ",
      lane, "; share lanes between users, or raise the transport's largest tag (MPI_TAG_UB)"));
}

absl::StatusOr<bool> CreditScheduler::Poll(int64_t now_ns) {
  budget_.BeginPoll(now_ns);
  previous_demand_ = demand_now_;
  demand_now_ = Priority::kBulk;
  WEFT_RETURN_IF_ERROR(link_.Poll());
  WEFT_ASSIGN_OR_RETURN(const bool any_message, PollControlMessages());
  WEFT_ASSIGN_OR_RETURN(const bool any_transfer, PollTransfers());
  return any_message || any_transfer;
}

absl::StatusOr<bool> CreditScheduler::PollTransfers() {
  std::vector<Transfer> done;
  absl::Status failed;
  std::erase_if(in_flight_, [&](const Transfer& transfer) {
    if (!failed.ok()) return false;
    const absl::StatusOr<bool> tested = link_.Test(transfer.request);
    if (tested.ok() && !*tested) return false;
    failed = tested.status();
    if (tested.ok()) done.push_back(transfer);
    return true;  // The link also forgets a request that has failed.
  });
  for (const Transfer& transfer : done) FinishTransfer(transfer);
  WEFT_RETURN_IF_ERROR(failed);
  budget_.EndPoll();
  trials_.EndPoll(budget_.now_ns(), all_bytes_ > 0, NeedsTrials());
  return !done.empty();
}

void CreditScheduler::FinishTransfer(const Transfer& transfer) {
  const auto bytes = static_cast<int64_t>(transfer.bytes);
  if (transfer.receive) {
    BytesInFlight(transfer.lane, transfer.phase) -= bytes;
    all_bytes_ -= bytes;
    CountShared(transfer, -bytes);
    budget_.Arrived(transfer.credit, bytes, transfer.slices);
    trials_.Arrived(bytes, transfer.slices);
    if (transfer.yielded) yielded_bytes_ -= bytes;
  } else {
    poll_times_.EndSend(bytes);
  }
  // Windows and rates count the bytes that an encoded slice may have, not those that it has.
  const auto moved = transfer.encoded == nullptr
                         ? bytes
                         : std::min(bytes, static_cast<int64_t>(CompressedBytes(transfer.encoded)));
  trace_.AddSlice(transfer.lane, {.lane = {},
                                  .sequence = transfer.sequence,
                                  .sent = !transfer.receive,
                                  .peer = transfer.peer,
                                  .number = transfer.slice,
                                  .slices = transfer.slices,
                                  .bytes = moved,
                                  .begin_ns = transfer.begin_ns,
                                  .end_ns = 0});
  for (int64_t n = 0; n < transfer.slices; ++n) transfer.owner->OnWireDone(transfer.slice + n);
}

int64_t& CreditScheduler::BytesInFlight(int lane, WirePhase phase) {
  const size_t index = IndexOf(lane);
  if (index >= bytes_in_flight_.size()) bytes_in_flight_.resize(index + 1);
  return bytes_in_flight_[index][static_cast<size_t>(phase)];
}

bool CreditScheduler::MayReceive(int lane, WirePhase phase, Priority priority, size_t bytes,
                                 int64_t slices) const {
  const size_t index = IndexOf(lane);
  const int64_t lane_bytes =
      index < bytes_in_flight_.size() ? bytes_in_flight_[index][static_cast<size_t>(phase)] : 0;
  if (slices == 1 && lane_bytes == 0 && rules_.head_always_has_credit) return true;
  const auto more = static_cast<int64_t>(bytes);
  const int64_t windows = priority == Priority::kCritical ? kCriticalWindows : 1;
  if (lane_bytes + more > windows * options_.lane_window_bytes && all_bytes_ + more > budget_.bytes())
    return false;
  const auto fits = [&](int64_t window, Priority above) {
    return priority <= above || BytesBelow(above) + more <= window;
  };
  return fits(options_.yield_window_bytes, highest_demand()) &&
         (!uses_background_window_ ||
          fits(std::max(options_.background_window_bytes, budget_.bytes()), Priority::kCritical));
}

int64_t CreditScheduler::BytesBelow(Priority priority) const {
  int64_t bytes = 0;
  for (size_t p = static_cast<size_t>(priority) + 1; p < bytes_by_priority_.size(); ++p)
    bytes += bytes_by_priority_[p];
  return bytes;
}

void CreditScheduler::RegisterDemand(Priority priority) { demand_now_ = std::min(demand_now_, priority); }

absl::Status CreditScheduler::Receive(const Channel& channel, WirePhase phase, Priority priority,
                                      const Descriptor& descriptor, const PartShape& part, Slice slice,
                                      WireOwner* owner) {
  WEFT_ASSIGN_OR_RETURN(const WireLink::RequestId request,
                        link_.Receive(channel.peer, TagOf(channel), slice.target, slice.bytes, slice.length));
  const bool shared = slice.sender_has_started;
  const bool yielded = shared && priority > highest_demand();
  in_flight_.push_back({request, owner, slice.number, true, slice.bytes, channel.peer, channel.lane,
                        channel.sequence, channel.number, trace_.Begin(), phase, priority, shared, yielded,
                        budget_.Grant(), slice.slices,
                        slice.length == WireLink::Length::kAtMost ? slice.target : nullptr});
  if (yielded) {
    yielded_bytes_ += static_cast<int64_t>(slice.bytes);
    counters_.yielded_peak_bytes = std::max(counters_.yielded_peak_bytes, yielded_bytes_);
  }
  BytesInFlight(channel.lane, phase) += static_cast<int64_t>(slice.bytes);
  all_bytes_ += static_cast<int64_t>(slice.bytes);
  CountShared(in_flight_.back(), static_cast<int64_t>(slice.bytes));
  counters_.requested_peak_bytes = std::max(counters_.requested_peak_bytes, all_bytes_);
  return SendCredit(channel, descriptor, part, static_cast<int32_t>(slice.slices));
}

void CreditScheduler::CountInSharedWindows(const Channel& channel) {
  for (Transfer& transfer : in_flight_) {
    if (transfer.peer != channel.peer || !transfer.receive || transfer.shared) continue;
    const Key key{transfer.lane, transfer.sequence, transfer.peer, transfer.channel};
    if (key != KeyOf(channel)) continue;
    const auto bytes = static_cast<int64_t>(transfer.bytes);
    CountShared(transfer, -bytes);
    transfer.shared = true;
    CountShared(transfer, bytes);
  }
}

absl::Status CreditScheduler::AnnounceEmptyPart(const Channel& channel, const Descriptor& descriptor) {
  return SendCredit(channel, descriptor, {}, 0);
}

std::optional<CreditScheduler::Credit> CreditScheduler::CreditOf(const Channel& channel) const {
  const auto it = credits_.find(KeyOf(channel));
  if (it == credits_.end()) return std::nullopt;
  return it->second.credit;
}

int64_t CreditScheduler::SlicesOfMessage(const Channel& channel, int64_t slice) const {
  const std::vector<Run>& runs = credits_.at(KeyOf(channel)).runs;
  return runs.empty() || runs.front().first != slice ? 1 : runs.front().slices;
}

absl::Status CreditScheduler::Send(const Channel& channel, int64_t slice, const std::byte* source,
                                   size_t bytes, WireOwner* owner, int64_t slices) {
  if (slices > 1) {
    std::vector<Run>& runs = credits_.at(KeyOf(channel)).runs;
    runs.erase(runs.begin());
  }
  WEFT_ASSIGN_OR_RETURN(const WireLink::RequestId request,
                        link_.Send(channel.peer, TagOf(channel), source, bytes));
  in_flight_.push_back({request, owner, slice, false, bytes, channel.peer, channel.lane, channel.sequence,
                        channel.number, trace_.Begin(), WirePhase::kGather, Priority::kBulk});
  in_flight_.back().slices = slices;
  poll_times_.BeginSend(static_cast<int64_t>(bytes), budget_.now_ns());
  ++counters_.wire_messages;
  counters_.wire_bytes += static_cast<int64_t>(bytes);
  mail_.CountPeer(channel.peer);
  return absl::OkStatus();
}

std::optional<std::pair<int, Descriptor>> CreditScheduler::FindMismatch(int lane, const Descriptor& mine) {
  if (peer_reports_.empty()) return std::nullopt;  // Always, on one node.
  const auto it = peer_reports_.find(std::pair<int, uint64_t>{lane, mine.sequence});
  if (it == peer_reports_.end()) return std::nullopt;
  PeerReports& reports = it->second;
  for (; reports.compared < reports.descriptors.size(); ++reports.compared) {
    const PeerDescriptor& theirs = reports.descriptors[reports.compared];
    if (!IsSameCollective(theirs.descriptor, mine)) return std::pair{theirs.peer, theirs.descriptor};
  }
  return std::nullopt;
}

void CreditScheduler::Forget(int lane, uint64_t sequence) {
  if (peer_reports_.empty()) return;
  const auto it = peer_reports_.find(std::pair<int, uint64_t>{lane, sequence});
  if (it == peer_reports_.end()) return;
  for (const PeerDescriptor& peer : it->second.descriptors) started_peers_.erase({lane, sequence, peer.peer});
  peer_reports_.erase(it);
  const auto is_of_operation = [&](const auto& entry) {
    return std::get<0>(entry.first) == lane && std::get<1>(entry.first) == sequence;
  };
  absl::erase_if(credits_, is_of_operation);
  absl::erase_if(partials_, is_of_operation);
}

void CreditScheduler::Abandon() {
  for (const Transfer& transfer : in_flight_) {
    if (!link_.Cancel(transfer.request)) uncanceled_.push_back(transfer);
  }
  in_flight_.clear();
  poll_times_.Abandon();
  bytes_in_flight_.clear();
  bytes_by_priority_ = {};
  all_bytes_ = 0;
  silent_bytes_ = ran_ahead_bytes_ = 0;
  yielded_bytes_ = 0;
  credits_.clear();
  partials_.clear();
  peer_reports_.clear();
  started_peers_.clear();
}

CreditScheduler::PeersInFlight CreditScheduler::AbandonedTransfers() {
  const absl::Status polled = link_.Poll();
  std::erase_if(uncanceled_, [&](const Transfer& transfer) {
    const absl::StatusOr<bool> done = link_.Test(transfer.request);
    return !polled.ok() || !done.ok() || *done;  // An error also ends the transfer.
  });
  PeersInFlight peers;
  for (const Transfer& transfer : uncanceled_) {
    (transfer.receive ? peers.senders : peers.receivers).insert(transfer.peer);
  }
  return peers;
}

}  // namespace weft
