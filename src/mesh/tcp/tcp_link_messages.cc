// Messages of a TcpLink: those that arrive, and the requests that send and receive them.
#include <algorithm>
#include <cstring>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/mesh/base/link_checks.h"
#include "src/mesh/tcp/tcp_link.h"
#include "weft/core/status.h"

namespace weft::internal {

// Messages that arrive.

bool TcpLink::Accept(const TcpGreeting& greeting) {
  const bool is_peer = greeting.rank >= 0 && greeting.rank < static_cast<int64_t>(peers_.size());
  const bool is_ours = greeting.magic == TcpGreeting::kMagic &&
                       std::string_view(greeting.token.data(), greeting.token.size()) == endpoint_.token;
  return is_peer && is_ours && Of(static_cast<int>(greeting.rank)).receiver == nullptr;
}

absl::StatusOr<TcpReceiver::Client::Place> TcpLink::Begin(int peer, const TcpHeader& header) {
  Peer& state = Of(peer);
  state.receive = 0;
  state.arrival = nullptr;
  if (header.kind == TcpHeader::Kind::kData && header.tag >= 0 && header.tag <= max_tag())
    return BeginData(state, peer, header);
  const uint64_t longest = header.kind == TcpHeader::Kind::kControl ? kMaxControlMessageBytes : 0;
  if (header.kind == TcpHeader::Kind::kData || header.kind > TcpHeader::Kind::kFarewell ||
      header.bytes > longest) {
    return absl::InternalError(absl::StrCat("it has sent a message of kind ",
                                            static_cast<uint32_t>(header.kind), ", tag ", header.tag, " and ",
                                            header.bytes, " bytes"));
  }
  state.text.assign(header.bytes, '\0');
  return Place{state.text.data(), header.bytes};
}

// An arrival grows with the bytes that have arrived: a header alone takes no memory.
TcpReceiver::Client::Place TcpLink::Continue(int peer, const TcpHeader& header) {
  constexpr uint64_t kLeastGrowth = uint64_t{1} << 16;
  std::string& bytes = Of(peer).arrival->bytes;
  const uint64_t known = bytes.size();
  bytes.resize(known + std::min(header.bytes - known, std::max(known, kLeastGrowth)));
  return {bytes.data() + known, bytes.size() - known};
}

TcpReceiver::Client::Place TcpLink::BeginData(Peer& state, int peer, const TcpHeader& header) {
  const auto posted = posted_.find(Channel{peer, header.tag});
  if (posted == posted_.end()) {
    state.arrival = std::make_shared<Arrival>();
    unexpected_[Channel{peer, header.tag}].push_back(state.arrival);
    return Continue(peer, header);
  }
  state.receive = posted->second.front();
  posted->second.pop_front();
  if (posted->second.empty()) posted_.erase(posted);
  const Request& receive = *requests_.at(state.receive);
  if (header.bytes <= receive.bytes) return {receive.data, header.bytes};
  // The bytes may never arrive.
  Complete(std::exchange(state.receive, 0), OutcomeOf(receive, header.bytes));
  return {nullptr, header.bytes};
}

absl::Status TcpLink::OutcomeOf(const Request& receive, size_t bytes) {
  return CheckLength(receive.bytes, receive.length, bytes);
}

void TcpLink::End(int peer, const TcpHeader& header) {
  Peer& state = Of(peer);
  if (header.kind == TcpHeader::Kind::kControl) {
    control_messages_.push_back({peer, std::move(state.text)});
  } else if (header.kind == TcpHeader::Kind::kFarewell) {
    state.closed = true;
    // The connection to the peer may have ended before the one from it was accepted.
    std::erase_if(lost_, [&](const LostPeer& other) { return other.peer == peer; });
  } else if (state.receive != 0) {
    Complete(state.receive, OutcomeOf(*requests_.at(state.receive), header.bytes));
    state.receive = 0;
  } else if (state.arrival != nullptr) {
    state.arrival->complete = true;
    if (state.arrival->receive != 0) {
      Request& receive = *requests_.at(state.arrival->receive);
      Complete(state.arrival->receive, OutcomeOf(receive, header.bytes));
      if (receive.outcome.ok()) std::memcpy(receive.data, state.arrival->bytes.data(), header.bytes);
    }
    state.arrival = nullptr;
  }
}

// Requests.

absl::StatusOr<WireLink::RequestId> TcpLink::Send(int peer, int tag, const void* data, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckEnvelope(peer, static_cast<int>(peers_.size()), tag, max_tag()));
  const RequestId id = next_request_++;
  auto request = std::make_unique<Request>();
  request->peer = peer;
  request->is_send = true;
  requests_.emplace(id, std::move(request));
  if (IsGone(peer)) {
    Complete(id, Loss(peer));
    return id;
  }
  Activate(peer);
  WEFT_RETURN_IF_ERROR(StartConnection(peer));
  Of(peer).sender.AppendData(id, tag, data, bytes);
  Flush(peer);
  return id;
}

absl::StatusOr<WireLink::RequestId> TcpLink::Receive(int peer, int tag, void* data, size_t bytes,
                                                     Length length) {
  WEFT_RETURN_IF_ERROR(CheckEnvelope(peer, static_cast<int>(peers_.size()), tag, max_tag()));
  const RequestId id = next_request_++;
  auto& request = *requests_.emplace(id, std::make_unique<Request>()).first->second;
  request.peer = peer;
  request.tag = tag;
  request.data = static_cast<char*>(data);
  request.bytes = bytes;
  request.length = length;
  const auto found = unexpected_.find(Channel{peer, tag});
  if (found == unexpected_.end()) {
    posted_[Channel{peer, tag}].push_back(id);
    return id;
  }
  const std::shared_ptr<Arrival> arrival = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) unexpected_.erase(found);
  if (arrival->complete) {
    Complete(id, OutcomeOf(request, arrival->bytes.size()));
    if (request.outcome.ok() && !arrival->bytes.empty()) {
      std::memcpy(request.data, arrival->bytes.data(), arrival->bytes.size());
    }
  } else {
    arrival->receive = id;
  }
  return id;
}

absl::StatusOr<bool> TcpLink::Test(RequestId id) {
  const auto found = requests_.find(id);
  WEFT_CHECK(found != requests_.end(), "Test of a request that is not in flight");
  const Request& request = *found->second;
  if (!request.done) {
    const int peer = request.peer;
    const bool may_have_closed = !request.is_send && !Of(peer).has_ended;
    if (!IsLost(peer) || may_have_closed) return false;
    Cancel(id);
    return Loss(peer);
  }
  const absl::Status outcome = request.outcome;
  requests_.erase(found);
  WEFT_RETURN_IF_ERROR(outcome);
  return true;
}

bool TcpLink::Cancel(RequestId id) {
  const auto found = requests_.find(id);
  WEFT_CHECK(found != requests_.end(), "Cancel of a request that is not in flight");
  const std::unique_ptr<Request> request = std::move(found->second);
  requests_.erase(found);
  if (!request->done) Withdraw(id, *request);
  return true;
}

void TcpLink::Withdraw(RequestId id, const Request& request) {
  Peer& state = Of(request.peer);
  if (request.is_send) {
    state.sender.Detach(id);
  } else if (state.receive == id) {
    state.receive = 0;
    if (state.receiver != nullptr) state.receiver->SkipRest();
  } else if (state.arrival != nullptr && state.arrival->receive == id) {
    state.arrival->receive = 0;
  } else if (const auto posted = posted_.find(Channel{request.peer, request.tag}); posted != posted_.end()) {
    std::erase(posted->second, id);
    if (posted->second.empty()) posted_.erase(posted);
  }
}

absl::Status TcpLink::SendControlMessage(int peer, std::string_view bytes) {
  WEFT_RETURN_IF_ERROR(CheckControlMessage(peer, static_cast<int>(peers_.size()), bytes.size()));
  if (IsGone(peer)) return absl::OkStatus();  // See Note [Closed links].
  Activate(peer);
  WEFT_RETURN_IF_ERROR(StartConnection(peer));
  Of(peer).sender.AppendText(TcpHeader::Kind::kControl, bytes);
  Flush(peer);
  return absl::OkStatus();
}

bool TcpLink::HasUnsentControlMessages() const {
  return std::any_of(active_.begin(), active_.end(),
                     [&](int peer) { return Of(peer).sender.has_unsent_text(); });
}

absl::StatusOr<std::optional<WireLink::ControlMessage>> TcpLink::PollControlMessage() {
  if (control_messages_.empty()) return std::optional<ControlMessage>();
  ControlMessage message = std::move(control_messages_.front());
  control_messages_.pop_front();
  return std::optional<ControlMessage>(std::move(message));
}

}  // namespace weft::internal
