// Incoming connection of a link from one peer: reads messages into the places that its client names.
//
// Thread safety: one caller at a time.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "src/mesh/base/file_handle.h"
#include "src/mesh/tcp/tcp_frame.h"

namespace weft::internal {

class TcpReceiver {
 public:
  class Client {
   public:
    virtual ~Client() = default;
    // The greeting of a connection. False: close it.
    virtual bool Accept(const TcpGreeting& greeting) = 0;
    // A message begins. Returns the place of its bytes, or null to skip them.
    virtual char* Begin(int peer, const TcpHeader& header) = 0;
    // All bytes of the message are in their place.
    virtual void End(int peer, const TcpHeader& header) = 0;
  };

  explicit TcpReceiver(FileHandle socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }
  // Negative before the greeting.
  int peer() const { return peer_; }
  // Reads what has arrived, up to a few messages. False: the connection has ended.
  bool Read(Client& client);
  // Skips the rest of the message that arrives: its place is not written any more.
  void SkipRest() { target_ = nullptr; }
  // Why the connection has ended.
  const std::string& failure() const { return failure_; }

 private:
  enum class Part { kGreeting, kHeader, kBody };
  static constexpr size_t kStagingBytes = 4096;

  // Handles bytes that are in the staging buffer. False: close the connection.
  bool Parse(Client& client, const char* bytes, size_t count);
  bool FinishPart(Client& client);
  void StartBody(Client& client);

  FileHandle socket_;
  int peer_ = -1;
  Part part_ = Part::kGreeting;
  TcpGreeting greeting_;
  TcpHeader header_;
  char* target_ =
      reinterpret_cast<char*>(&greeting_);  // Target of the next byte. Null: the bytes are dropped.
  size_t left_ = sizeof(TcpGreeting);       // Bytes of the part that have not arrived.
  std::array<char, kStagingBytes> staging_ = {};
  std::string failure_;
};

}  // namespace weft::internal
