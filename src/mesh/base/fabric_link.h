// WireLink between ranks of one process, over an in-process fabric.
//
// All links that one collective OpenLink call creates share a fabric. The fabric matches sends with receives
// and copies their bytes: immediately between threads, after a virtual delay between simulated ranks.
//
// Sends are synchronous: a send completes only after its receive has matched. Code that relies on buffered
// sends therefore fails here.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "weft/mesh/wire_link.h"

namespace weft::internal {

// One end of a data message: a posted send or receive. After Post, only the fabric accesses it, except for
// `done` and `outcome`.
struct FabricTransfer {
  int rank = 0;
  bool is_send = false;
  std::byte* data = nullptr;
  size_t bytes = 0;
  WireLink::Length length = WireLink::Length::kExact;  // Used by receives.
  std::shared_ptr<FabricTransfer> match;  // The other end, from matching until the bytes are copied.
  bool copied = false;                    // For fabrics that copy the bytes some time after matching.
  absl::Status outcome;                   // Written before `done`.
  std::atomic<bool> done{false};
};

using FabricChannel = std::tuple<int, int, int>;  // Sender, receiver, tag.

// Posted sends and receives that have no match yet, in order of posting.
//
// Thread safety: none.
class MatchQueue {
 public:
  // Removes and returns the oldest opposite end on the channel. If there is none, adds `transfer` and returns
  // null.
  std::shared_ptr<FabricTransfer> Match(const FabricChannel& channel,
                                        const std::shared_ptr<FabricTransfer>& transfer);
  // Removes `transfer`. False if it is not in the queue.
  bool Withdraw(const FabricChannel& channel, const FabricTransfer& transfer);

 private:
  // A queue never has both sends and receives, because they would have matched.
  absl::flat_hash_map<FabricChannel, std::vector<std::shared_ptr<FabricTransfer>>> waiting_;
};

// Copies the bytes of a matched pair and sets the receive's outcome. Neither buffer is accessed afterwards.
void MoveBytes(FabricTransfer& send, FabricTransfer& receive);

// Interface of the fabric that connects all FabricLink links of one OpenLink call.
class InProcessFabric {
 public:
  virtual ~InProcessFabric() = default;
  virtual int ranks() const = 0;
  // Posts a send or a receive.
  virtual void Post(const FabricChannel& channel, const std::shared_ptr<FabricTransfer>& transfer) = 0;
  // Removes `transfer` if it has no match yet. False if it has matched.
  virtual bool Withdraw(const FabricChannel& channel, const FabricTransfer& transfer) = 0;
  // Called when the link of `transfer` is destroyed. Whether `transfer` has a match or not, its buffer is not
  // accessed afterwards.
  virtual void Abandon(const FabricChannel& channel, FabricTransfer& transfer) = 0;
  virtual void PushControlMessage(int sender, int receiver, std::string_view bytes) = 0;
  virtual std::optional<WireLink::ControlMessage> PopControlMessage(int rank) = 0;
};

class FabricLink final : public WireLink {
 public:
  FabricLink(int rank, std::shared_ptr<InProcessFabric> fabric) : rank_(rank), fabric_(std::move(fabric)) {}
  ~FabricLink() override;

  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override;
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes, Length length) override;
  absl::Status Poll() override;
  absl::StatusOr<bool> Test(RequestId request) override;
  bool Cancel(RequestId request) override;
  absl::Status SendControlMessage(int peer, std::string_view bytes) override;
  bool HasUnsentControlMessages() const override { return false; }
  absl::StatusOr<std::optional<ControlMessage>> PollControlMessage() override;
  int max_tag() const override { return (1 << 30) - 1; }
  bool has_rendezvous() const override { return true; }  // Messages are as long as over MPI.

 private:
  struct Request {
    FabricChannel channel;
    std::shared_ptr<FabricTransfer> transfer;
  };
  // Sets the transfer's rank and posts it to the fabric.
  RequestId Post(const FabricChannel& channel, const std::shared_ptr<FabricTransfer>& transfer);

  int rank_;
  std::shared_ptr<InProcessFabric> fabric_;
  RequestId next_request_ = 1;
  absl::flat_hash_map<RequestId, Request> requests_;
};

}  // namespace weft::internal
