// Incoming connection of a link from one peer: reads messages into the places that its client names.
//
// Thread safety: one caller at a time.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include <absl/status/statusor.h>

#include "src/mesh/tcp/tcp_frame.h"
#include "src/mesh/tcp/watched_socket.h"

namespace weft::internal {

class TcpReceiver {
 public:
  class Client {
   public:
    virtual ~Client() = default;
    // The greeting of a connection. False: close it.
    virtual bool Accept(const TcpGreeting& greeting) = 0;
    // Target of the next bytes of a message. They are skipped if `data` is null.
    struct Place {
      char* data = nullptr;
      uint64_t bytes = 0;
    };
    // A message begins. Returns the place of its first bytes. Errors: the header is malformed; the message
    // says what `peer` has sent, and ends the connection.
    virtual absl::StatusOr<Place> Begin(int peer, const TcpHeader& header) = 0;
    // The place is full, and the message has more bytes. Returns the place of the next ones.
    virtual Place Continue(int peer, const TcpHeader& header) = 0;
    // All bytes of the message are in their place.
    virtual void End(int peer, const TcpHeader& header) = 0;
  };

  explicit TcpReceiver(WatchedSocket socket) : socket_(std::move(socket)) {}

  // Negative before the greeting.
  int peer() const { return peer_; }
  // Reads what has arrived, up to a few messages. False: the connection has ended.
  bool Read(Client& client);
  // Skips the rest of the message that arrives: its place is not written any more.
  void SkipRest() { target_ = nullptr; }
  // Why the connection has ended.
  const std::string& failure() const { return failure_; }
  // It has ended because of the bytes that the peer has sent.
  bool is_malformed() const { return is_malformed_; }

 private:
  enum class Part { kGreeting, kHeader, kBody };
  static constexpr size_t kStagingBytes = 4096;

  // Handles bytes that are in the staging buffer. False: close the connection.
  bool Parse(Client& client, const char* bytes, size_t count);
  bool FinishPart(Client& client);
  bool StartBody(Client& client);
  void SetPlace(Client::Place place);

  WatchedSocket socket_;
  int peer_ = -1;
  Part part_ = Part::kGreeting;
  TcpGreeting greeting_;
  TcpHeader header_;
  char* target_ =
      reinterpret_cast<char*>(&greeting_);  // Target of the next byte. Null: the bytes are dropped.
  uint64_t left_ = sizeof(TcpGreeting);     // Bytes for the target that have not arrived.
  uint64_t rest_ = 0;                       // Bytes of the body behind these.
  std::array<char, kStagingBytes> staging_ = {};
  std::string failure_;
  bool is_malformed_ = false;
};

}  // namespace weft::internal
