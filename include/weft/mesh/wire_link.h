// Interface of a transport: tagged, non-blocking point-to-point messages between ranks.
//
// A link carries two kinds of messages:
//   - *Data messages* go directly between buffers. Every send needs a posted receive. Sends and receives
//     match by (peer, tag), in the order of posting. A receive gives the message's exact length or its
//     maximum.
//   - *Control messages* are small and need no posted receive. They arrive in order for each pair of ranks.
//
// Thread safety: one caller at a time (the engine's lock).
// Lifetime: a buffer must stay valid until Test returns true or an error for its request, until Cancel
// returns true, or until the link is destroyed. Destroying a link never blocks, even with messages in flight.
// Over MPI its end does not release the buffers of requests in flight: MPI cancels neither a send nor a
// receive that has matched a message, and may access their buffers in any later call, until it is finalized.
// There a request in flight must complete, or its buffer stay valid until the end of MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

namespace weft {

class WireLink {
 public:
  static constexpr size_t kMaxControlMessageBytes = 1024;
  using RequestId = uint64_t;
  struct ControlMessage {
    int peer;
    std::string bytes;
  };

  // Meaning of a receive's `bytes`: the exact length of the message, or its maximum.
  enum class Length : uint8_t { kExact, kAtMost };

  virtual ~WireLink() = default;

  // Post a data message or a receive. `peer` is a bootstrap rank; `tag` is in [0, max_tag()].
  // Errors: kInvalidArgument (peer, tag or length out of range), kInternal (the transport failed).
  virtual absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) = 0;
  virtual absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes, Length length) = 0;
  // Makes progress on all messages in flight on this link. A message may need Polls of its sender and of its
  // receiver. Test and PollControlMessage report at least what had completed at the last Poll.
  // Errors: kInternal (the transport failed).
  virtual absl::Status Poll() = 0;
  // True if the request is complete. The id is invalid after true or an error.
  // Errors: kInternal (the transport failed, with its message; the connection to the peer was lost; or a
  // message had a length that its receive does not allow).
  virtual absl::StatusOr<bool> Test(RequestId request) = 0;
  // Cancels a request. True: the id is invalid, and the buffer is not accessed any more; a message that had
  // already arrived in it may be discarded. False: the message is in flight; call Test until it is complete.
  // MPI cannot cancel a send: it completes when its bytes have left, or, above the size that MPI sends
  // eagerly, when its receive has matched.
  virtual bool Cancel(RequestId request) = 0;

  // Sends a copy of `bytes`, in this call or in later Polls.
  // Errors: kInvalidArgument (peer out of range, or more than kMaxControlMessageBytes), kInternal.
  virtual absl::Status SendControlMessage(int peer, std::string_view bytes) = 0;
  // True if control messages may still wait to be sent.
  virtual bool HasUnsentControlMessages() const = 0;
  // Returns the next control message that has arrived; nullopt if there is none. Errors: kInternal (the
  // transport failed).
  virtual absl::StatusOr<std::optional<ControlMessage>> PollControlMessage() = 0;

  // Peers that have ended without closing their links, in the order in which this was noticed. A request to
  // or from one of them fails in Test. Empty if the transport does not notice, as MPI.
  struct LostPeer {
    int peer;
    absl::Status cause;  // kInternal. Names the peer, and says what to do.
    // The peer cannot be reached, but this may be because it has closed its link: the transport cannot tell.
    // Receives from it stay pending.
    bool may_have_closed = false;
  };
  virtual absl::Span<const LostPeer> LostPeers() const { return {}; }
  // Connections that peers have not answered yet, with what to do, for the error of a missed deadline; empty
  // if there are none. A firewall may drop their packets.
  virtual std::string DescribeUnanswered() const { return {}; }

  virtual int max_tag() const = 0;
  // True if a long message may wait for an answer of its receiver before it leaves, as in the rendezvous
  // protocol of MPI. Without it, the engine sends longer messages (Note [Wire budget] in
  // src/comm/links/wire_budget.h).
  virtual bool has_rendezvous() const = 0;
};

}  // namespace weft
