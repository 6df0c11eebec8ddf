#include "src/comm/links/credit_scheduler.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

enum class NoteKind : uint8_t { kCredit, kWord, kAreYouThere, kHere };

struct CreditNote {
  NoteKind kind = NoteKind::kCredit;
  int32_t lane = 0;
  int32_t number = 0;
  int32_t slices = 0;
  PartShape part;
  Descriptor descriptor;
};
static_assert(std::is_trivially_copyable_v<CreditNote> && sizeof(CreditNote) <= WireLink::kMaxNoteBytes);

struct WordHeader {
  NoteKind kind = NoteKind::kWord;
  int32_t code = 0;
};

// A note that says nothing but its kind.
std::string_view Bare(const NoteKind& kind) { return {reinterpret_cast<const char*>(&kind), sizeof(kind)}; }

int TagOf(const CreditScheduler::Channel& channel) {
  return channel.lane * CreditScheduler::kChannels + channel.number;
}

}  // namespace

CreditScheduler::CreditScheduler(WireLink& link, const EngineOptions& options, EngineCounters& counters)
    : link_(link), options_(options), counters_(counters) {}

absl::StatusOr<bool> CreditScheduler::Poll() {
  wanted_last_ = wanted_now_;
  wanted_now_ = Priority::kBulk;
  WEFT_RETURN_IF_ERROR(link_.Poll());
  WEFT_ASSIGN_OR_RETURN(const bool notes, PollNotes());
  WEFT_ASSIGN_OR_RETURN(const bool transfers, PollTransfers());
  return notes || transfers;
}

absl::StatusOr<bool> CreditScheduler::PollNotes() {
  bool any = false;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(std::optional<WireLink::Note> note, link_.PollNote());
    if (!note) return any;
    any = true;
    WEFT_RETURN_IF_ERROR(TakeNote(*note));
  }
}

absl::Status CreditScheduler::TakeNote(const WireLink::Note& note) {
  NoteKind kind{};
  WEFT_CHECK(!note.bytes.empty(), "an empty note arrived");
  std::memcpy(&kind, note.bytes.data(), sizeof(kind));
  if (kind == NoteKind::kWord) {
    WordHeader header;
    std::memcpy(&header, note.bytes.data(), sizeof(header));
    if (!word_) {
      word_ = {note.peer,
               absl::Status(static_cast<absl::StatusCode>(header.code), note.bytes.substr(sizeof(header)))};
    }
    return absl::OkStatus();
  }
  if (kind == NoteKind::kAreYouThere) return link_.SendNote(note.peer, Bare(NoteKind::kHere));
  if (kind == NoteKind::kHere) {
    answers_.insert(note.peer);
    return absl::OkStatus();
  }
  CreditNote credit;
  if (note.bytes.size() != sizeof(credit)) {
    return absl::InternalError(absl::StrCat("a credit of ", note.bytes.size(), " bytes came from rank ",
                                            note.peer, ", ", sizeof(credit),
                                            " were expected: ranks run different versions"));
  }
  std::memcpy(&credit, note.bytes.data(), sizeof(credit));
  const uint64_t sequence = credit.descriptor.sequence;
  Credit& known_credit = credits_[Key{credit.lane, sequence, note.peer, credit.number}];
  known_credit.slices += credit.slices;
  known_credit.part = credit.part;
  std::vector<Notice>& notices = notices_[{credit.lane, sequence}];
  const bool known =
      std::any_of(notices.begin(), notices.end(), [&](const Notice& n) { return n.peer == note.peer; });
  if (!known) notices.push_back({note.peer, credit.descriptor});
  return absl::OkStatus();
}

absl::StatusOr<bool> CreditScheduler::PollTransfers() {
  bool any = false;
  for (size_t i = 0; i < under_way_.size();) {
    const absl::StatusOr<bool> done = link_.Test(under_way_[i].request);
    if (done.ok() && !*done) {
      ++i;
      continue;
    }
    any = true;
    // The link forgets a request that failed as well.
    const Transfer transfer = under_way_[i];
    under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(i));
    WEFT_RETURN_IF_ERROR(done.status());
    if (transfer.receive) {
      UnderWay(transfer.lane, transfer.phase) -= static_cast<int64_t>(transfer.bytes);
      bytes_by_priority_[static_cast<size_t>(transfer.priority)] -= static_cast<int64_t>(transfer.bytes);
      if (transfer.yielded) yielded_bytes_ -= static_cast<int64_t>(transfer.bytes);
    }
    transfer.owner->OnWireDone(transfer.slice);
  }
  return any;
}

bool CreditScheduler::MayReceive(int lane, WirePhase phase, Priority priority, size_t bytes,
                                 bool head) const {
  const int64_t lane_bytes = under_way_bytes_[static_cast<size_t>(lane)][static_cast<size_t>(phase)];
  if (head && lane_bytes == 0 && !options_.starve_heads) return true;
  const int64_t lane_window = options_.lane_window_bytes * (priority == Priority::kCritical ? 2 : 1);
  if (lane_bytes + static_cast<int64_t>(bytes) > lane_window) return false;
  const auto keeps_to = [&](int64_t window, Priority above) {
    return priority <= above || BytesBelow(above) + static_cast<int64_t>(bytes) <= window;
  };
  return keeps_to(options_.yield_window_bytes, highest_wanted()) &&
         (!expects_exchanges_ || keeps_to(options_.background_window_bytes, Priority::kCritical));
}

int64_t CreditScheduler::BytesBelow(Priority priority) const {
  int64_t bytes = 0;
  for (size_t p = static_cast<size_t>(priority) + 1; p < bytes_by_priority_.size(); ++p)
    bytes += bytes_by_priority_[p];
  return bytes;
}

void CreditScheduler::Want(Priority priority) { wanted_now_ = std::min(wanted_now_, priority); }

absl::Status CreditScheduler::Receive(const Channel& channel, WirePhase phase, Priority priority,
                                      const Descriptor& descriptor, const PartShape& part, Slice slice,
                                      WireOwner* owner) {
  WEFT_ASSIGN_OR_RETURN(const WireLink::RequestId request,
                        link_.Receive(channel.peer, TagOf(channel), slice.target, slice.bytes, slice.length));
  const bool yielded = priority > highest_wanted();
  under_way_.push_back({request, owner, slice.number, true, slice.bytes, channel.peer, channel.lane, phase,
                        priority, yielded});
  if (yielded) {
    yielded_bytes_ += static_cast<int64_t>(slice.bytes);
    counters_.yielded_peak_bytes = std::max(counters_.yielded_peak_bytes, yielded_bytes_);
  }
  UnderWay(channel.lane, phase) += static_cast<int64_t>(slice.bytes);
  bytes_by_priority_[static_cast<size_t>(priority)] += static_cast<int64_t>(slice.bytes);
  return SendCredit(channel, descriptor, part, 1);
}

absl::Status CreditScheduler::ExpectNothing(const Channel& channel, const Descriptor& descriptor) {
  return SendCredit(channel, descriptor, {}, 0);
}

absl::Status CreditScheduler::SendCredit(const Channel& channel, const Descriptor& descriptor,
                                         const PartShape& part, int32_t slices) {
  CreditNote note;
  note.lane = channel.lane;
  note.number = channel.number;
  note.slices = slices;
  note.part = part;
  note.descriptor = descriptor;
  return link_.SendNote(channel.peer, {reinterpret_cast<const char*>(&note), sizeof(note)});
}

std::optional<CreditScheduler::Credit> CreditScheduler::CreditOf(const Channel& channel) const {
  const auto it = credits_.find(KeyOf(channel));
  if (it == credits_.end()) return std::nullopt;
  return it->second;
}

absl::Status CreditScheduler::Send(const Channel& channel, int64_t slice, const std::byte* source,
                                   size_t bytes, WireOwner* owner) {
  WEFT_ASSIGN_OR_RETURN(const WireLink::RequestId request,
                        link_.Send(channel.peer, TagOf(channel), source, bytes));
  under_way_.push_back({request, owner, slice, false, bytes, channel.peer, channel.lane, WirePhase::kGather,
                        Priority::kBulk, false});
  counters_.wire_bytes += static_cast<int64_t>(bytes);
  return absl::OkStatus();
}

std::optional<std::pair<int, Descriptor>> CreditScheduler::FindMismatch(int lane,
                                                                        const Descriptor& mine) const {
  const auto it = notices_.find(std::pair<int, uint64_t>{lane, mine.sequence});
  if (it == notices_.end()) return std::nullopt;
  for (const Notice& notice : it->second) {
    if (!Agree(notice.descriptor, mine)) return std::pair{notice.peer, notice.descriptor};
  }
  return std::nullopt;
}

void CreditScheduler::Forget(int lane, uint64_t sequence) {
  const auto it = notices_.find(std::pair<int, uint64_t>{lane, sequence});
  if (it == notices_.end()) return;
  notices_.erase(it);
  absl::erase_if(credits_, [&](const auto& entry) {
    return std::get<0>(entry.first) == lane && std::get<1>(entry.first) == sequence;
  });
}

void CreditScheduler::BroadcastFailure(const absl::Status& cause, const std::vector<int>& ranks) {
  WordHeader header;
  header.code = static_cast<int32_t>(cause.code());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(cause.message().data(),
               std::min(cause.message().size(), WireLink::kMaxNoteBytes - sizeof(header)));
  for (int rank : ranks) {
    // A rank that cannot be told finds out by its own deadline; there is nothing better to do here.
    const absl::Status sent = link_.SendNote(rank, bytes);
    static_cast<void>(sent);
  }
}

void CreditScheduler::RequestHeartbeat(const std::vector<int>& ranks) {
  answers_.clear();
  for (const int rank : ranks) {
    // Whoever cannot even be asked does not answer.
    const absl::Status sent = link_.SendNote(rank, Bare(NoteKind::kAreYouThere));
    static_cast<void>(sent);
  }
}

void CreditScheduler::Abandon() {
  for (const Transfer& transfer : under_way_) {
    if (transfer.receive && !link_.Cancel(transfer.request)) arriving_.push_back(transfer);
  }
  under_way_.clear();
  under_way_bytes_ = {};
  bytes_by_priority_ = {};
  yielded_bytes_ = 0;
  credits_.clear();
  notices_.clear();
}

std::set<int> CreditScheduler::ArrivingFrom() {
  const absl::Status polled = link_.Poll();
  std::erase_if(arriving_, [&](const Transfer& transfer) {
    const absl::StatusOr<bool> done = link_.Test(transfer.request);
    return !polled.ok() || !done.ok() || *done;  // An error ends it as well.
  });
  std::set<int> peers;
  for (const Transfer& transfer : arriving_) peers.insert(transfer.peer);
  return peers;
}

}  // namespace weft
