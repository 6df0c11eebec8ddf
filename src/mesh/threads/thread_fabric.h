// Messages between ranks that are threads of one process: copied straight from the sender's buffer to the
// receiver's by whichever of the two comes second.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "src/mesh/base/fabric_wire.h"

namespace weft::internal {

// Thread safety: all members.
class ThreadFabric final : public WireFabric {
 public:
  explicit ThreadFabric(int ranks) : mailboxes_(static_cast<size_t>(ranks)) {}

  int ranks() const override { return static_cast<int>(mailboxes_.size()); }
  void Meet(const WireChannel& channel, const std::shared_ptr<WireTransfer>& transfer) override;
  bool Withdraw(const WireChannel& channel, const WireTransfer& transfer) override;
  void Abandon(const WireChannel& channel, WireTransfer& transfer) override { Withdraw(channel, transfer); }
  void PutNote(int sender, int receiver, std::string_view bytes) override;
  std::optional<WireLink::Note> TakeNote(int rank) override;

 private:
  // What has been sent to, or is awaited by, one rank.
  struct Mailbox {
    std::mutex mutex;
    WireMeetings meetings;
    std::deque<WireLink::Note> notes;
    std::atomic<bool> has_notes{false};
  };
  Mailbox& ReceiverOf(const WireChannel& channel) {
    return mailboxes_[static_cast<size_t>(std::get<1>(channel))];
  }

  std::vector<Mailbox> mailboxes_;
};

}  // namespace weft::internal
