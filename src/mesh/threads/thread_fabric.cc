#include "src/mesh/threads/thread_fabric.h"

#include <string>
#include <utility>

namespace weft::internal {

void ThreadFabric::Post(const FabricChannel& channel, const std::shared_ptr<FabricTransfer>& transfer) {
  Mailbox& mailbox = ReceiverOf(channel);
  // The bytes are copied under the lock, so that neither end can withdraw its buffer meanwhile.
  const std::lock_guard lock(mailbox.mutex);
  const std::shared_ptr<FabricTransfer> match = mailbox.match_queue.Match(channel, transfer);
  if (match == nullptr) return;
  FabricTransfer& send = transfer->is_send ? *transfer : *match;
  FabricTransfer& receive = transfer->is_send ? *match : *transfer;
  MoveBytes(send, receive);
  send.done.store(true, std::memory_order_release);
  receive.done.store(true, std::memory_order_release);
}

bool ThreadFabric::Withdraw(const FabricChannel& channel, const FabricTransfer& transfer) {
  Mailbox& mailbox = ReceiverOf(channel);
  const std::lock_guard lock(mailbox.mutex);
  return mailbox.match_queue.Withdraw(channel, transfer);
}

void ThreadFabric::PushControlMessage(int sender, int receiver, std::string_view bytes) {
  Mailbox& mailbox = mailboxes_[static_cast<size_t>(receiver)];
  const std::lock_guard lock(mailbox.mutex);
  mailbox.control_messages.push_back({sender, std::string(bytes)});
  mailbox.has_control_messages.store(true, std::memory_order_release);
}

std::optional<WireLink::ControlMessage> ThreadFabric::PopControlMessage(int rank) {
  Mailbox& mailbox = mailboxes_[static_cast<size_t>(rank)];
  if (!mailbox.has_control_messages.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mailbox.mutex);
  WireLink::ControlMessage message = std::move(mailbox.control_messages.front());
  mailbox.control_messages.pop_front();
  mailbox.has_control_messages.store(!mailbox.control_messages.empty(), std::memory_order_release);
  return message;
}

}  // namespace weft::internal
