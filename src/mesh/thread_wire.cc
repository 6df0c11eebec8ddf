#include "src/mesh/thread_wire.h"

#include <algorithm>
#include <cstring>

#include "src/mesh/wire_checks.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

void Complete(ThreadTransfer& send, ThreadTransfer& receive) {
  receive.outcome = CheckLength(receive.bytes, send.bytes);
  if (receive.outcome.ok() && send.bytes != 0) std::memcpy(receive.target, send.source, send.bytes);
  send.done.store(true, std::memory_order_release);
  receive.done.store(true, std::memory_order_release);
}

}  // namespace

void ThreadMailbox::Meet(Channel channel, const std::shared_ptr<ThreadTransfer>& transfer) {
  // The copy is made under the lock, so that neither end can withdraw its buffer meanwhile.
  const std::lock_guard lock(mutex_);
  auto& queue = waiting_[channel];
  if (queue.empty() || queue.front()->is_send == transfer->is_send) {
    queue.push_back(transfer);
    return;
  }
  const std::shared_ptr<ThreadTransfer> other = queue.front();
  queue.pop_front();
  if (queue.empty()) waiting_.erase(channel);
  if (transfer->is_send) {
    Complete(*transfer, *other);
  } else {
    Complete(*other, *transfer);
  }
}

void ThreadMailbox::Withdraw(Channel channel, const ThreadTransfer& transfer) {
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(channel);
  if (found == waiting_.end()) return;
  std::erase_if(found->second, [&](const auto& waiting) { return waiting.get() == &transfer; });
  if (found->second.empty()) waiting_.erase(found);
}

void ThreadMailbox::PutNote(WireLink::Note note) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(std::move(note));
  has_notes_.store(true, std::memory_order_release);
}

std::optional<WireLink::Note> ThreadMailbox::TakeNote() {
  if (!has_notes_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  WireLink::Note note = std::move(notes_.front());
  notes_.pop_front();
  has_notes_.store(!notes_.empty(), std::memory_order_release);
  return note;
}

ThreadWire::~ThreadWire() {
  for (auto& [id, request] : requests_) {
    (*fabric_)[request.receiver].Withdraw(request.channel, *request.transfer);
  }
}

WireLink::RequestId ThreadWire::Post(const Request& request) {
  (*fabric_)[request.receiver].Meet(request.channel, request.transfer);
  requests_.emplace(next_request_, request);
  return next_request_++;
}

absl::StatusOr<WireLink::RequestId> ThreadWire::Send(int peer, int tag, const void* data, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckEnvelope(peer, static_cast<int>(fabric_->size()), tag, max_tag()));
  auto transfer = std::make_shared<ThreadTransfer>();
  transfer->is_send = true;
  transfer->source = data;
  transfer->bytes = bytes;
  return Post({peer, {rank_, tag}, std::move(transfer)});
}

absl::StatusOr<WireLink::RequestId> ThreadWire::Receive(int peer, int tag, void* data, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckEnvelope(peer, static_cast<int>(fabric_->size()), tag, max_tag()));
  auto transfer = std::make_shared<ThreadTransfer>();
  transfer->target = data;
  transfer->bytes = bytes;
  return Post({rank_, {peer, tag}, std::move(transfer)});
}

absl::StatusOr<bool> ThreadWire::Test(RequestId request) {
  const auto found = requests_.find(request);
  WEFT_CHECK(found != requests_.end(), "test of a request that is not under way");
  const std::shared_ptr<ThreadTransfer> transfer = found->second.transfer;
  if (!transfer->done.load(std::memory_order_acquire)) return false;
  requests_.erase(found);
  WEFT_RETURN_IF_ERROR(transfer->outcome);
  return true;
}

bool ThreadWire::Cancel(RequestId receive) {
  const auto found = requests_.find(receive);
  WEFT_CHECK(found != requests_.end(), "cancellation of a request that is not under way");
  (*fabric_)[found->second.receiver].Withdraw(found->second.channel, *found->second.transfer);
  requests_.erase(found);
  return true;
}

absl::Status ThreadWire::SendNote(int peer, std::string_view bytes) {
  WEFT_RETURN_IF_ERROR(CheckNote(peer, static_cast<int>(fabric_->size()), bytes.size()));
  (*fabric_)[peer].PutNote({rank_, std::string(bytes)});
  return absl::OkStatus();
}

absl::StatusOr<std::optional<WireLink::Note>> ThreadWire::PollNote() { return (*fabric_)[rank_].TakeNote(); }

}  // namespace weft::internal
