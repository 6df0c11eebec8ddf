// Signals between the two ends of point-to-point messages. Trivially copyable.
//
// Note [Messages]
// Problem: no other rank submits a point-to-point message, either end may come first, and a receive may not
// know its sender. A message must not flood the receiver, whose buffer it needs.
// Rule: a sender *announces* a message when it is submitted. Announcements of one sender arrive in order. The
// receiver matches an announcement with the first receive of the same channel and tag that accepts its
// sender, or keeps it until there is one. Data moves only then:
//   - Between nodes, the receiver gives credits, as for a part of a collective: Note [Credits].
//   - Within a node, if the sender's buffer is node memory, the receiver copies from it, and reports kPulled.
//     Otherwise it sends kGrant. If the grant has the address of its own buffer, the sender copies to that,
//     and reports kPushed. If neither buffer is node memory, the sender stages pieces in a ring of scratch:
//     kStaged says how many are staged, and kConsumed how many the receiver has copied.
// Why it suffices: both ends hold their buffers when data moves, so every transfer that has begun completes
// without any other operation, and the windows of Note [Credits] cannot lock up. An announcement takes a
// small record at the receiver, and nothing else, until it is matched.
//
// Leaving: a rank that destroys its engine announces that it sends nothing more, and, once it has no
// unfinished receive, that it receives nothing more. Both arrive after what it had sent before. A receive
// that only this rank could match, or a send that it has not matched, then fails. A rank that has had a
// message announces it to all ranks. A rank that has had none announces it to one rank of each neighbor node
// (Note [Node graphs]), its *witnesses*, which pass it on to the ranks of their nodes: engines without
// messages then send few signals. A rank whose message has waited for about a second asks a rank of each
// neighbor node of the other end, each second another one, and these answer once they know. A receive from
// any rank asks about all, once: about one in each poll.
// Limits: if no rank that has learned of the leaving is left before another rank's first message, that
// message ends at its deadline. The same holds for a receive from any rank if the ranks that it asks have
// not learned of the leaving, because the witness of their node had left before it passed the announcement
// on. With up to five nodes, all nodes are neighbors.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include <absl/status/statusor.h>

#include "src/comm/links/control_mail.h"
#include "src/comm/links/mailbox.h"
#include "weft/comm/types.h"
#include "weft/core/dtype.h"
#include "weft/memory/node_heap.h"

namespace weft {

enum class SignalKind : uint8_t {
  // From the sender of a message.
  kAnnounce,  // `address`: of its buffer, or none.
  kPushed,    // The data is in the receiver's buffer.
  kStaged,    // `pieces`: staged so far. `address`: of the ring.
  // From the receiver.
  kGrant,     // `address`: of its buffer, or none.
  kPulled,    // The data has been copied.
  kConsumed,  // `pieces`: copied out of the ring so far.
  // About no message.
  kInterest,        // The rank has a receive from the peer, or from any rank.
  kAsksWitness,     // Has the rank `leaver` left? The answer is one of those below, once it has.
  kNoMoreSends,     // Of the rank `leaver`.
  kNoMoreReceives,  // Of the rank `leaver`.
};

struct Signal {
  SignalKind kind = SignalKind::kAnnounce;
  DType dtype = DType::kU8;
  ElementKind elements = ElementKind::kPlain;
  int32_t tag = 0;
  int32_t leaver = 0;
  bool for_whole_node = false;  // The receiver passes the signal on to the other ranks of its node.
  // The leaver has had no message. None of its signals can then be on the way, so others may pass this one
  // on.
  bool is_unused = false;
  uint64_t number = 0;  // The sender's number of the message.
  uint64_t channel = 0;
  uint64_t identity = 0;
  int64_t bytes = 0;
  int64_t pieces = 0;
  NodeAddress address{-1, 0};  // Rank -1: none.
};
static_assert(std::is_trivially_copyable_v<Signal> && sizeof(Signal) <= Mailbox::kMaxBytes &&
              sizeof(Signal) <= ControlMail::kMaxSignalBytes);

std::string_view Name(SignalKind kind);  // "pushed".

// The signal that `peer` has sent.
// Errors: kInternal (the bytes are no signal).
absl::StatusOr<Signal> ParseSignal(int peer, std::string_view bytes);
// The error of a signal that does not fit the state of its message. `problem`: "which ...".
absl::Status UnexpectedSignal(int peer, const Signal& signal, std::string_view problem);

inline std::string_view WireBytes(const Signal& signal) {
  return {reinterpret_cast<const char*>(&signal), sizeof(signal)};
}

}  // namespace weft
