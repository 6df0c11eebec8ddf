#include "src/mesh/tcp/tcp_link.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/mesh/tcp/connection_options.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// Time that every connection has to send its greeting. See Note [Strangers].
constexpr absl::Duration kGreetingTimeout = absl::Seconds(30);

absl::Status SystemError(std::string_view call) {
  return absl::InternalError(
      absl::StrCat("cannot open a link over TCP: ", ToAbsl(call), ": ", std::strerror(errno)));
}

// Listens at all addresses of the host, of IPv6 as well if the kernel has it. Returns the port.
absl::StatusOr<uint16_t> ListenAt(int descriptor, int family) {
  sockaddr_in6 address = {};  // Zero is any address, and any port.
  address.sin6_family = static_cast<sa_family_t>(family);
  const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  const int off = 0;
  if (family == AF_INET6) setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(descriptor, reinterpret_cast<sockaddr*>(&address), bytes) != 0) return SystemError("bind");
  if (listen(descriptor, SOMAXCONN) != 0) return SystemError("listen");
  socklen_t size = sizeof(address);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return SystemError("getsockname");
  return ntohs(address.sin6_port);  // At the same place as the port of IPv4.
}

// True if accept failed by an error of the connection that it would have returned, or of its network.
bool IsOfOneConnection(int error) {
  constexpr std::array<int, 11> kErrors = {EINTR,       ECONNABORTED, ENETDOWN, EPROTO,
                                           ENOPROTOOPT, EHOSTDOWN,    ENONET,   EHOSTUNREACH,
                                           ENETUNREACH, EOPNOTSUPP,   EPERM};
  return std::find(kErrors.begin(), kErrors.end(), error) != kErrors.end();
}

// True if this process, and not a peer, is at fault for a socket that cannot be opened.
bool IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// A new connection has room for it, or has ended, which its receiver notices.
void SendName(const WatchedSocket& connection, const TcpName& name) {
  static_cast<void>(send(connection.get(), &name, sizeof(name), MSG_NOSIGNAL | MSG_DONTWAIT));
}

bool IsReadable(const WatchedSocket& socket) {
  pollfd watched = {socket.get(), POLLIN, 0};
  return poll(&watched, 1, /*timeout=*/0) > 0;
}

absl::Status NoSocket(std::string_view purpose, int error) {
  return absl::InternalError(absl::StrCat("cannot ", ToAbsl(purpose), " another rank: ", std::strerror(error),
                                          "; if there are too many files, raise `ulimit -n`"));
}

constexpr const char* kOtherNetwork =
    "name the interface that connects the nodes in WEFT_NETWORK, as in WEFT_NETWORK=eth0, or let MPI carry "
    "the messages of a job that it starts, by WEFT_TRANSPORT=mpi";

// Subject of an event of epoll. The rest of its data is the rank of a sender, or the id of a receiver.
enum class Source : uint64_t { kListener, kSender, kReceiver };

uint64_t DataOf(Source source, uint64_t id) { return static_cast<uint64_t>(source) | id << 2; }
Source SourceOf(uint64_t data) { return static_cast<Source>(data & 3); }
uint64_t IdOf(uint64_t data) { return data >> 2; }

}  // namespace

absl::StatusOr<std::unique_ptr<TcpLink>> TcpLink::Listen(int rank, const std::string& network,
                                                         const Runtime& runtime) {
  WEFT_ASSIGN_OR_RETURN(TcpEndpoint endpoint, TcpEndpoint::OfThisHost(network));
  FileHandle events(epoll_create1(EPOLL_CLOEXEC));
  if (!events.is_open()) return SystemError("epoll_create1");
  int family = AF_INET6;
  WatchedSocket listener = WatchedSocket::Open(family);
  if (!listener.is_open()) {
    family = AF_INET;
    listener = WatchedSocket::Open(family);
  }
  if (!listener.is_open()) return SystemError("socket");
  WEFT_ASSIGN_OR_RETURN(endpoint.port, ListenAt(listener.get(), family));
  if (!listener.Watch(events.get(), EPOLLIN, DataOf(Source::kListener, 0))) return SystemError("epoll_ctl");
  return std::unique_ptr<TcpLink>(
      new TcpLink(rank, runtime, std::move(endpoint), std::move(events), std::move(listener)));
}

void TcpLink::SetPeers(std::vector<TcpEndpoint> endpoints) {
  FindSharedAddresses(endpoints);
  peers_.resize(endpoints.size());
  for (size_t rank = 0; rank < endpoints.size(); ++rank) peers_[rank].endpoint = std::move(endpoints[rank]);
}

TcpLink::~TcpLink() {
  if (getpid() != owner_) return;
  for (const auto& [id, request] : requests_) {
    if (!request->is_send && !request->done) Withdraw(id, *request);  // The last Poll writes to no buffer.
  }
  for (const int peer : started_) Of(peer).sender.DropUnstartedData();
  Report(Poll());  // Connections that have been made meanwhile can send the farewell.
  std::vector<TcpSender::MessageId> sent;
  for (const int peer : started_) {
    if (IsGone(peer)) continue;
    Of(peer).sender.AppendText(TcpHeader::Kind::kFarewell, "");
    Of(peer).sender.Write(sent);
  }
}

bool TcpLink::IsLost(int peer) const {
  const Peer& state = Of(peer);
  const TcpSender& sender = state.sender;
  const bool cannot_send = sender.is_started() && !sender.is_open();
  return !state.closed &&
         (state.has_ended || (cannot_send && (state.receiver == nullptr || !sender.has_connected())));
}

absl::Status TcpLink::Loss(int peer) const {
  const Peer& state = Of(peer);
  if (state.closed) return absl::InternalError(absl::StrCat("rank ", peer, " has closed its link"));
  if (state.has_ended && state.is_malformed) {
    return absl::InternalError(
        absl::StrCat("the connection from rank ", peer, " was closed: ", state.failure, kSameVersionRemedy));
  }
  return absl::InternalError(
      absl::StrCat("the connection to rank ", peer,
                   " was lost: ", state.has_ended ? state.failure : state.sender.failure(),
                   ". The rank has ended, or the network has failed; otherwise ", kOtherNetwork));
}

void TcpLink::NoteLoss(int peer) {
  if (!IsLost(peer)) return;
  const bool may_have_closed = !Of(peer).has_ended;
  const auto known =
      std::find_if(lost_.begin(), lost_.end(), [&](const LostPeer& other) { return other.peer == peer; });
  if (known != lost_.end() && known->may_have_closed == may_have_closed) return;
  LostPeer& lost = known == lost_.end() ? lost_.emplace_back() : *known;
  lost = {peer, Loss(peer), may_have_closed};
}

std::string TcpLink::DescribeUnanswered() const {
  constexpr size_t kMostNamed = 4;
  std::vector<std::string> peers;
  for (const int peer : started_) {
    const TcpSender& sender = Of(peer).sender;
    if (sender.is_connecting()) peers.push_back(absl::StrCat("rank ", peer, " at ", sender.route()));
  }
  if (peers.empty()) return {};
  const size_t named = std::min(peers.size(), kMostNamed);
  const std::string more = named < peers.size() ? absl::StrCat(" and ", peers.size() - named, " more") : "";
  peers.resize(named);
  return absl::StrCat("no answer yet to a connection to ", absl::StrJoin(peers, ", "), more,
                      ": check that it runs and that no firewall drops packets, ", kOtherNetwork);
}

// Connections.

absl::Status TcpLink::StartConnection(int peer) {
  Peer& state = Of(peer);
  if (state.sender.is_started()) return absl::OkStatus();
  TcpGreeting greeting;
  greeting.rank = rank_;
  std::memcpy(greeting.token.data(), state.endpoint.token.data(),
              std::min(greeting.token.size(), state.endpoint.token.size()));
  TcpName name;
  name.name = state.endpoint.PublicName();
  state.sender.Connect(greeting, name, RoutesTo(endpoint_, state.endpoint), state.endpoint.port, runtime_);
  started_.push_back(peer);
  return WatchSender(peer);
}

absl::Status TcpLink::WatchSender(int peer) {
  TcpSender& sender = Of(peer).sender;
  if (!sender.is_open() && IsShortage(sender.socket_error()))
    return NoSocket("open a connection to", sender.socket_error());
  if (!sender.is_open()) return absl::OkStatus();
  const uint64_t data = DataOf(Source::kSender, static_cast<uint64_t>(peer));
  if (!sender.socket().Watch(events_.get(), sender.events(), data)) return SystemError("epoll_ctl");
  return absl::OkStatus();
}

absl::Status TcpLink::AcceptConnections() {
  TcpName name;
  name.name = endpoint_.PublicName();
  while (true) {
    WatchedSocket socket = WatchedSocket::Accept(listener_);
    if (!socket.is_open() && errno == EAGAIN) return absl::OkStatus();
    if (!socket.is_open() && IsOfOneConnection(errno)) continue;
    if (!socket.is_open()) {
      const int error = errno;
      // Without a descriptor, accept fails also if no connection waits.
      if (IsShortage(error) && !IsReadable(listener_)) return absl::OkStatus();
      if (IsShortage(error) && CloseStranger()) continue;
      return NoSocket("accept a connection of", error);
    }
    SetConnectionOptions(socket.get());
    SendName(socket, name);
    const uint64_t id = next_receiver_++;
    if (!socket.Watch(events_.get(), EPOLLIN, DataOf(Source::kReceiver, id))) return SystemError("epoll_ctl");
    auto receiver = std::make_unique<TcpReceiver>(std::move(socket));
    receivers_.insert({id, Connection{std::move(receiver), Deadline(runtime_, kGreetingTimeout)}});
    ReadFrom(id);
  }
}

bool TcpLink::CloseStranger() {
  std::vector<uint64_t> strangers;
  for (const auto& [id, connection] : receivers_) {
    if (connection.receiver->peer() < 0) strangers.push_back(id);
  }
  std::sort(strangers.begin(), strangers.end());
  for (const uint64_t id : strangers) {
    ReadFrom(id);  // Its greeting, or its end, may have arrived meanwhile.
    const auto found = receivers_.find(id);
    if (found == receivers_.end()) return true;
    if (found->second.receiver->peer() >= 0 || !found->second.greeting_deadline.HasPassed()) continue;
    receivers_.erase(found);
    return true;
  }
  return false;
}

void TcpLink::ReadFrom(uint64_t id) {
  const auto found = receivers_.find(id);
  if (found == receivers_.end()) return;
  TcpReceiver* const receiver = found->second.receiver.get();
  if (receiver->Read(*this)) {
    if (receiver->peer() >= 0) Of(receiver->peer()).receiver = receiver;
    return;
  }
  if (const int peer = receiver->peer(); peer >= 0) {
    Of(peer).receiver = nullptr;
    Of(peer).has_ended = true;
    Of(peer).failure = receiver->failure();
    Of(peer).is_malformed = receiver->is_malformed();
    NoteLoss(peer);
  }
  receivers_.erase(found);
}

absl::Status TcpLink::Poll() {
  constexpr int kEvents = 64;
  std::array<epoll_event, kEvents> events = {};
  const int count = epoll_wait(events_.get(), events.data(), kEvents, /*timeout=*/0);
  for (int i = 0; i < count; ++i) {
    const uint64_t data = events[static_cast<size_t>(i)].data.u64;
    const Source source = SourceOf(data);
    if (source == Source::kListener) {
      WEFT_RETURN_IF_ERROR(AcceptConnections());
    } else if (source == Source::kReceiver) {
      ReadFrom(IdOf(data));
    } else {
      const int peer = static_cast<int>(IdOf(data));
      Of(peer).sender.OnEvent();
      Activate(peer);
      WEFT_RETURN_IF_ERROR(WatchSender(peer));
    }
  }
  return VisitActivePeers();  // After all events: a connection from a peer may have been accepted.
}

void TcpLink::Activate(int peer) {
  if (!std::exchange(Of(peer).is_active, true)) active_.push_back(peer);
}

absl::Status TcpLink::VisitActivePeers() {
  for (const int peer : active_) {
    if (Of(peer).sender.EndLongAttempt()) WEFT_RETURN_IF_ERROR(WatchSender(peer));
    if (Of(peer).sender.has_unsent()) Flush(peer);
    NoteLoss(peer);
  }
  std::erase_if(active_, [this](int peer) { return !(Of(peer).is_active = Of(peer).sender.has_unsent()); });
  return absl::OkStatus();
}

void TcpLink::Flush(int peer) {
  std::vector<TcpSender::MessageId> sent;
  Of(peer).sender.Write(sent);
  for (const RequestId id : sent) Complete(id, absl::OkStatus());
  if (IsGone(peer)) DropSends(peer);
}

void TcpLink::DropSends(int peer) {
  for (const RequestId id : Of(peer).sender.Drop()) Complete(id, Loss(peer));
}

void TcpLink::Complete(RequestId id, absl::Status outcome) {
  Request& request = *requests_.at(id);
  request.done = true;
  request.outcome = std::move(outcome);
}

}  // namespace weft::internal
