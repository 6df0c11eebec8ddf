#include "src/mesh/threads/thread_fabric.h"

#include <string>
#include <utility>

namespace weft::internal {

void ThreadFabric::Meet(const WireChannel& channel, const std::shared_ptr<WireTransfer>& transfer) {
  Mailbox& mailbox = ReceiverOf(channel);
  // The bytes move under the lock, so that neither end can withdraw its buffer meanwhile.
  const std::lock_guard lock(mailbox.mutex);
  const std::shared_ptr<WireTransfer> other = mailbox.meetings.Meet(channel, transfer);
  if (other == nullptr) return;
  WireTransfer& send = transfer->is_send ? *transfer : *other;
  WireTransfer& receive = transfer->is_send ? *other : *transfer;
  MoveBytes(send, receive);
  send.done.store(true, std::memory_order_release);
  receive.done.store(true, std::memory_order_release);
}

bool ThreadFabric::Withdraw(const WireChannel& channel, const WireTransfer& transfer) {
  Mailbox& mailbox = ReceiverOf(channel);
  const std::lock_guard lock(mailbox.mutex);
  return mailbox.meetings.Withdraw(channel, transfer);
}

void ThreadFabric::PutNote(int sender, int receiver, std::string_view bytes) {
  Mailbox& mailbox = mailboxes_[static_cast<size_t>(receiver)];
  const std::lock_guard lock(mailbox.mutex);
  mailbox.notes.push_back({sender, std::string(bytes)});
  mailbox.has_notes.store(true, std::memory_order_release);
}

std::optional<WireLink::Note> ThreadFabric::TakeNote(int rank) {
  Mailbox& mailbox = mailboxes_[static_cast<size_t>(rank)];
  if (!mailbox.has_notes.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mailbox.mutex);
  WireLink::Note note = std::move(mailbox.notes.front());
  mailbox.notes.pop_front();
  mailbox.has_notes.store(!mailbox.notes.empty(), std::memory_order_release);
  return note;
}

}  // namespace weft::internal
