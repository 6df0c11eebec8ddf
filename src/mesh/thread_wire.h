// Messages between ranks that are threads of one process: a mailbox for each rank.
//
// Data is copied straight from the sender's buffer to the receiver's by whichever of the two comes second, so
// that a send is done only when it has been received: what relies on a buffered send fails here.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "weft/mesh/wire_link.h"

namespace weft::internal {

// One end of a message, in whose mailbox it waits for the other end.
struct ThreadTransfer {
  bool is_send = false;
  const void* source = nullptr;  // Of a send.
  void* target = nullptr;        // Of a receive.
  size_t bytes = 0;
  absl::Status outcome;  // Written before `done`.
  std::atomic<bool> done{false};
};

// What has been sent to, or is awaited by, one rank.
//
// Thread safety: all members.
class ThreadMailbox {
 public:
  using Channel = std::pair<int, int>;  // Sender, tag.

  // Completes `transfer` with the oldest opposite end of its channel, or lets it wait for one.
  void Meet(Channel channel, const std::shared_ptr<ThreadTransfer>& transfer);
  // Takes `transfer` back if it still waits; its buffer is not touched afterwards.
  void Withdraw(Channel channel, const ThreadTransfer& transfer);

  void PutNote(WireLink::Note note);
  std::optional<WireLink::Note> TakeNote();

 private:
  std::mutex mutex_;
  // Never both ends in one queue: the second would have completed the first.
  std::map<Channel, std::deque<std::shared_ptr<ThreadTransfer>>> waiting_;
  std::deque<WireLink::Note> notes_;
  std::atomic<bool> has_notes_{false};
};

// The mailboxes that the ranks' links share.
using ThreadFabric = std::vector<ThreadMailbox>;

class ThreadWire : public WireLink {
 public:
  ThreadWire(int rank, std::shared_ptr<ThreadFabric> fabric) : rank_(rank), fabric_(std::move(fabric)) {}
  ~ThreadWire() override;

  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override;
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes) override;
  absl::StatusOr<bool> Test(RequestId request) override;
  bool Cancel(RequestId receive) override;
  absl::Status SendNote(int peer, std::string_view bytes) override;
  absl::StatusOr<std::optional<Note>> PollNote() override;
  int max_tag() const override { return (1 << 30) - 1; }

 private:
  struct Request {
    int receiver;
    ThreadMailbox::Channel channel;
    std::shared_ptr<ThreadTransfer> transfer;
  };
  RequestId Post(const Request& request);

  int rank_;
  std::shared_ptr<ThreadFabric> fabric_;
  RequestId next_request_ = 1;
  absl::flat_hash_map<RequestId, Request> requests_;
};

}  // namespace weft::internal
