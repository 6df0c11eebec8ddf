// WireLink over TCP sockets, between any ranks.
//
// A rank connects to a peer with its first message to it. Data arrives directly in the buffer of its receive,
// if that is posted, as an engine's always is. Otherwise the link keeps it until the receive is posted.
//
// Note [Closed links]
// Problem: a connection ends if a peer dies, and also if it destroys its link in order.
// Rule: the destructor drops data that it has not begun to send, and sends a farewell on each connection. A
//   peer whose incoming connection ends without one is *lost*: requests to and from it fail. After a farewell
//   it is *closed*: messages to it are dropped, data sends fail, and receives stay pending.
//   A peer that has no connection to this rank says no farewell. If it cannot be reached, it may be dead or
//   may have closed its link: LostPeers says so, and receives stay pending. The engine asks other ranks
//   (Note [Leaving]).
// Why it suffices: the farewell precedes the end of the connection. A connection to a peer that fails while
//   the one from it still lives decides nothing: the peer may just be closing both. An engine in order needs
//   nothing from a peer that has closed its link. One case is left: the kernel may not take the rest of a
//   message that has begun. The farewell cannot follow, and the peer, which has a part of it, is told of a
//   loss.
// Without it: ranks that end one after the other fail each other, or a dead rank is noticed at a deadline
//   only.
//
// Note [Strangers]
// Problem: other programs, such as scanners of ports, may connect and send nothing. Each connection takes a
//   descriptor of this process.
// Rule: if no descriptor is left to accept a connection, the oldest one is closed that has sent no greeting
//   for half a minute. If there is none, accepting fails, and the error names the remedy. Connecting to a
//   peer fails likewise, and closes none.
// Why it suffices: a rank of the job sends its greeting in the poll that finds the name of this one.
// Without it: a younger connection may be that of a rank, which does not connect again if it is closed.
//
// Note [Wrong hosts]
// Problem: another host may have an address of the peer, as bridges of containers and private networks do.
//   Some program there may accept a connection at the peer's port, and close it, or keep it in silence.
// Rule: a link sends its public name on each connection that it accepts. A rank sends its token and messages
//   only once it has read the name of the peer. If the connection ends before, or has another name, the rank
//   tries the next route. If a connection brings no name for half a minute, it also does, as long as there is
//   another route, and comes back to this one after the others: the peer may only be slow.
// Why it suffices: the name is a hash of the token, so that another program does not have it unless it copies
//   that of the peer. A connection that is given up has brought the peer no greeting, so that the peer
//   forgets it.
// Without it: the first program that accepts a connection would get the token, and end the job.
// Cost: the first message to a peer leaves only once the peer has polled. A link that is destroyed before
//   drops it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include "src/mesh/base/file_handle.h"
#include "src/mesh/tcp/tcp_endpoint.h"
#include "src/mesh/tcp/tcp_receiver.h"
#include "src/mesh/tcp/tcp_sender.h"
#include "src/mesh/tcp/watched_socket.h"
#include "weft/mesh/runtime.h"
#include "weft/mesh/wire_link.h"

namespace weft::internal {

class TcpLink final : public WireLink, private TcpReceiver::Client {
 public:
  // Starts to listen. `network`: see StoreBootstrapOptions::network. `runtime`: its clock measures the
  // age of connections (Note [Strangers]).
  // Lifetime: `runtime` must outlive the link.
  // Errors: those of TcpEndpoint::OfThisHost; kInternal (no socket; has the system's message).
  static absl::StatusOr<std::unique_ptr<TcpLink>> Listen(int rank, const std::string& network,
                                                         const Runtime& runtime);
  // In a child process of fork() it ends no connection. See Note [Copies of sockets].
  ~TcpLink() override;

  const TcpEndpoint& endpoint() const { return endpoint_; }
  // REQUIRES: called once, before any message. `endpoints` are those of all ranks.
  void SetPeers(std::vector<TcpEndpoint> endpoints);

  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override;
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes, Length length) override;
  absl::Status Poll() override;
  absl::StatusOr<bool> Test(RequestId request) override;
  // Always true: bytes that are still to be sent are copied, and those that still arrive are skipped.
  bool Cancel(RequestId request) override;
  absl::Status SendControlMessage(int peer, std::string_view bytes) override;
  bool HasUnsentControlMessages() const override;
  absl::StatusOr<std::optional<ControlMessage>> PollControlMessage() override;
  absl::Span<const LostPeer> LostPeers() const override { return lost_; }
  std::string DescribeUnanswered() const override;
  int max_tag() const override { return (1 << 30) - 1; }
  bool has_rendezvous() const override { return false; }

 private:
  struct Request {
    int peer = 0;
    int tag = 0;
    bool is_send = false;
    bool done = false;
    absl::Status outcome;  // The result of a request that is done.
    char* data = nullptr;
    size_t bytes = 0;
    Length length = Length::kExact;
  };
  // Data whose receive is not posted yet.
  struct Arrival {
    std::string bytes;
    bool complete = false;
    RequestId receive = 0;  // The receive that was posted meanwhile.
  };
  struct Peer {
    TcpEndpoint endpoint;
    TcpSender sender;
    TcpReceiver* receiver = nullptr;  // Null: the peer has not connected, or its connection has ended.
    bool has_ended = false;           // The peer's connection has ended.
    bool closed = false;
    bool is_active = false;     // It is in active_.
    std::string failure;        // Error of the peer's connection.
    bool is_malformed = false;  // The error is what the peer has sent.
    // Destination of the message in progress: a posted receive, or an unexpected message. If both are empty,
    // its bytes go to `text` or are dropped.
    RequestId receive = 0;
    std::shared_ptr<Arrival> arrival;
    std::string text;
  };
  // A connection that this rank has accepted.
  struct Connection {
    std::unique_ptr<TcpReceiver> receiver;
    Deadline greeting_deadline;  // See Note [Strangers].
  };
  using Channel = std::pair<int, int>;  // Peer, tag.

  TcpLink(int rank, const Runtime& runtime, TcpEndpoint endpoint, FileHandle events, WatchedSocket listener)
      : owner_(getpid()),
        rank_(rank),
        runtime_(runtime),
        endpoint_(std::move(endpoint)),
        events_(std::move(events)),
        listener_(std::move(listener)) {}

  bool Accept(const TcpGreeting& greeting) override;
  absl::StatusOr<Place> Begin(int peer, const TcpHeader& header) override;
  Place Continue(int peer, const TcpHeader& header) override;
  void End(int peer, const TcpHeader& header) override;
  Place BeginData(Peer& state, int peer, const TcpHeader& header);

  // True if the peer is lost. See Note [Closed links].
  bool IsLost(int peer) const;
  // True if messages to the peer are dropped: it is lost or closed.
  bool IsGone(int peer) const { return Of(peer).closed || IsLost(peer); }
  // Why messages to and from the peer are lost. REQUIRES: it is lost or closed.
  absl::Status Loss(int peer) const;
  // Adds the peer to the lost ones if it is lost, or notes that it is now known to have ended.
  void NoteLoss(int peer);
  // The next Poll visits the peer.
  void Activate(int peer);
  // Continues the messages and attempts to connect of all active peers.
  absl::Status VisitActivePeers();
  // Errors: those of WatchSender.
  absl::Status StartConnection(int peer);
  // Errors: kInternal (epoll has no room).
  absl::Status WatchSender(int peer);
  void Flush(int peer);
  absl::Status AcceptConnections();
  // Closes the oldest connection that has sent no greeting in time, or one that has ended. False: there is
  // none. See Note [Strangers].
  bool CloseStranger();
  void ReadFrom(uint64_t receiver_id);
  // Ends the sends to a peer that is lost or closed.
  void DropSends(int peer);
  void Complete(RequestId id, absl::Status outcome);
  // Takes a request that is not done off its queues: its buffer is not accessed any more.
  void Withdraw(RequestId id, const Request& request);
  // The outcome of a receive that a message of `bytes` has matched.
  static absl::Status OutcomeOf(const Request& receive, size_t bytes);
  Peer& Of(int peer) { return peers_[static_cast<size_t>(peer)]; }
  const Peer& Of(int peer) const { return peers_[static_cast<size_t>(peer)]; }

  const pid_t owner_;
  const int rank_;
  const Runtime& runtime_;
  TcpEndpoint endpoint_;
  FileHandle events_;  // An epoll instance.
  WatchedSocket listener_;
  std::vector<Peer> peers_;
  uint64_t next_receiver_ = 0;
  absl::flat_hash_map<uint64_t, Connection> receivers_;  // By the id in their events, in order.
  std::vector<int> started_;                             // Ranks to which this one has connected.
  // Those with unsent bytes, which a sender has until it has connected, and those whose connection to them
  // may have changed since the last Poll. A Poll visits no other one: most ranks of a large job are idle.
  std::vector<int> active_;
  std::vector<LostPeer> lost_;
  RequestId next_request_ = 1;
  absl::flat_hash_map<RequestId, std::unique_ptr<Request>> requests_;
  absl::flat_hash_map<Channel, std::deque<RequestId>> posted_;  // Receives without a message.
  absl::flat_hash_map<Channel, std::deque<std::shared_ptr<Arrival>>> unexpected_;
  std::deque<ControlMessage> control_messages_;
};

}  // namespace weft::internal
