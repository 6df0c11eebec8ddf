// The link between ranks of one process: transfers meet in a fabric that all links of an opening share. How
// the bytes of two ends that have met travel is the fabric's business: at once between threads, on virtual
// time between simulated ranks.
//
// A send is done only when it has been received: what relies on a buffered send fails here.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>

#include <absl/container/flat_hash_map.h>

#include "weft/mesh/wire_link.h"

namespace weft::internal {

// One end of a message. Nothing but the fabric looks at the ends that it holds.
struct WireTransfer {
  int rank = 0;
  bool is_send = false;
  std::byte* data = nullptr;
  size_t bytes = 0;
  WireLink::Length length = WireLink::Length::kExact;  // Of a receive.
  std::shared_ptr<WireTransfer> other;                 // Once they have met, and until the bytes have moved.
  absl::Status outcome;                                // Written before `done`.
  std::atomic<bool> done{false};
};

using WireChannel = std::tuple<int, int, int>;  // Sender, receiver, tag.

// Ends of messages that wait for the other end, first come first served.
//
// Thread safety: none.
class WireMeetings {
 public:
  // The oldest opposite end of the channel, which waits no longer; or null, and `transfer` waits.
  std::shared_ptr<WireTransfer> Meet(const WireChannel& channel,
                                     const std::shared_ptr<WireTransfer>& transfer);
  // Takes `transfer` back. False: it does not wait.
  bool Withdraw(const WireChannel& channel, const WireTransfer& transfer);

 private:
  // Never both ends in one queue: the second would have met the first.
  std::map<WireChannel, std::deque<std::shared_ptr<WireTransfer>>> waiting_;
};

// Moves the bytes of two ends, once, and leaves the outcome; afterwards neither buffer is touched.
void MoveBytes(WireTransfer& send, WireTransfer& receive);

class WireFabric {
 public:
  virtual ~WireFabric() = default;
  virtual int ranks() const = 0;
  virtual void Meet(const WireChannel& channel, const std::shared_ptr<WireTransfer>& transfer) = 0;
  // Takes `transfer` back if it still waits. False: it has met its other end.
  virtual bool Withdraw(const WireChannel& channel, const WireTransfer& transfer) = 0;
  // Its link goes: whatever state it is in, its buffer is not touched afterwards.
  virtual void Abandon(const WireChannel& channel, WireTransfer& transfer) = 0;
  virtual void PutNote(int sender, int receiver, std::string_view bytes) = 0;
  virtual std::optional<WireLink::Note> TakeNote(int rank) = 0;
};

class FabricWire final : public WireLink {
 public:
  FabricWire(int rank, std::shared_ptr<WireFabric> fabric) : rank_(rank), fabric_(std::move(fabric)) {}
  ~FabricWire() override;

  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override;
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes, Length length) override;
  absl::Status Poll() override;
  absl::StatusOr<bool> Test(RequestId request) override;
  bool Cancel(RequestId receive) override;
  absl::Status SendNote(int peer, std::string_view bytes) override;
  bool HasUnsentNotes() const override { return false; }
  absl::StatusOr<std::optional<Note>> PollNote() override;
  int max_tag() const override { return (1 << 30) - 1; }

 private:
  struct Request {
    WireChannel channel;
    std::shared_ptr<WireTransfer> transfer;
  };
  // Fills in whose transfer it is.
  RequestId Post(const WireChannel& channel, const std::shared_ptr<WireTransfer>& transfer);

  int rank_;
  std::shared_ptr<WireFabric> fabric_;
  RequestId next_request_ = 1;
  absl::flat_hash_map<RequestId, Request> requests_;
};

}  // namespace weft::internal
