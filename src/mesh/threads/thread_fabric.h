// In-process fabric between ranks that are threads. The rank that posts the second end of a message copies
// its bytes, directly from the send buffer to the receive buffer.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "src/mesh/base/fabric_link.h"

namespace weft::internal {

// Thread safety: any thread may call any member.
class ThreadFabric final : public InProcessFabric {
 public:
  explicit ThreadFabric(int ranks) : mailboxes_(static_cast<size_t>(ranks)) {}

  int ranks() const override { return static_cast<int>(mailboxes_.size()); }
  void Post(const FabricChannel& channel, const std::shared_ptr<FabricTransfer>& transfer) override;
  bool Withdraw(const FabricChannel& channel, const FabricTransfer& transfer) override;
  void Abandon(const FabricChannel& channel, FabricTransfer& transfer) override {
    Withdraw(channel, transfer);
  }
  void PushControlMessage(int sender, int receiver, std::string_view bytes) override;
  std::optional<WireLink::ControlMessage> PopControlMessage(int rank) override;

 private:
  // State of one receiving rank.
  struct Mailbox {
    std::mutex mutex;
    MatchQueue match_queue;
    std::deque<WireLink::ControlMessage> control_messages;
    std::atomic<bool> has_control_messages{false};
  };
  Mailbox& ReceiverOf(const FabricChannel& channel) {
    return mailboxes_[static_cast<size_t>(std::get<1>(channel))];
  }

  std::vector<Mailbox> mailboxes_;
};

}  // namespace weft::internal
