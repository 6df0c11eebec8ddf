// Tagged, non-blocking messages between ranks: what a runtime offers between nodes.
//
// Two kinds of traffic. *Data* goes straight between buffers: a receive must be posted for each send, of the
// same length or of the most that may come; they are matched by (peer, tag) in order. *Notes* are small
// unsolicited messages, delivered in order for each pair of ranks.
//
// Thread safety: one caller at a time (the engine's lock).
// Lifetime: a buffer must stay until Test says that its request is done, or until the link is destroyed.
//   Destroying a link never blocks, whatever is still under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft {

class WireLink {
 public:
  static constexpr size_t kMaxNoteBytes = 256;
  using RequestId = uint64_t;
  struct Note {
    int peer;
    std::string bytes;
  };

  // What a receive says of its message: it has just so many bytes, or no more.
  enum class Length : uint8_t { kExact, kAtMost };

  virtual ~WireLink() = default;

  // `peer` is a rank of the bootstrap; `tag` is in [0, max_tag()].
  virtual absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) = 0;
  virtual absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes, Length length) = 0;
  // Moves on whatever is under way. Test and PollNote say what was there at the last Poll; they may say more.
  // Errors: kInternal (the transport failed).
  virtual absl::Status Poll() = 0;
  // True once: the request is then forgotten, as after an error. Errors: kInternal (the transport failed, and
  // the message says what it said; or a message had a length that its receive does not allow).
  virtual absl::StatusOr<bool> Test(RequestId request) = 0;
  // Gives up a receive. True: it is forgotten, and its buffer is not touched any more. False: its message is
  // on its way, and Test says when it is there. A send cannot be taken back.
  virtual bool Cancel(RequestId receive) = 0;

  // Copies the note, which leaves with this call or with the Polls that follow. At most kMaxNoteBytes.
  virtual absl::Status SendNote(int peer, std::string_view bytes) = 0;
  // Whether a note may not have left yet.
  virtual bool HasUnsentNotes() const = 0;
  // The next note that has arrived, if any.
  virtual absl::StatusOr<std::optional<Note>> PollNote() = 0;

  virtual int max_tag() const = 0;
};

}  // namespace weft
