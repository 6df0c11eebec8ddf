#include "src/mesh/base/fabric_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/mesh/base/link_checks.h"
#include "weft/core/status.h"

namespace weft::internal {

std::shared_ptr<FabricTransfer> MatchQueue::Match(const FabricChannel& channel,
                                                  const std::shared_ptr<FabricTransfer>& transfer) {
  auto& queue = waiting_[channel];
  if (queue.empty() || queue.front()->is_send == transfer->is_send) {
    queue.push_back(transfer);
    return nullptr;
  }
  std::shared_ptr<FabricTransfer> match = std::move(queue.front());
  queue.erase(queue.begin());
  if (queue.empty()) waiting_.erase(channel);
  return match;
}

bool MatchQueue::Withdraw(const FabricChannel& channel, const FabricTransfer& transfer) {
  const auto found = waiting_.find(channel);
  if (found == waiting_.end()) return false;
  const size_t withdrawn =
      std::erase_if(found->second, [&](const auto& waiting) { return waiting.get() == &transfer; });
  if (found->second.empty()) waiting_.erase(found);
  return withdrawn > 0;
}

void MoveBytes(FabricTransfer& send, FabricTransfer& receive) {
  receive.outcome = CheckLength(receive.bytes, receive.length, send.bytes);
  if (receive.outcome.ok() && send.bytes != 0) std::memcpy(receive.data, send.data, send.bytes);
}

FabricLink::~FabricLink() {
  for (auto& [id, request] : requests_) fabric_->Abandon(request.channel, *request.transfer);
}

WireLink::RequestId FabricLink::Post(const FabricChannel& channel,
                                     const std::shared_ptr<FabricTransfer>& transfer) {
  transfer->rank = rank_;
  requests_.emplace(next_request_, Request{channel, transfer});
  fabric_->Post(channel, transfer);
  return next_request_++;
}

absl::StatusOr<WireLink::RequestId> FabricLink::Send(int peer, int tag, const void* data, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckEnvelope(peer, fabric_->ranks(), tag, max_tag()));
  auto transfer = std::make_shared<FabricTransfer>();
  transfer->is_send = true;
  // FabricTransfer has one pointer type for both ends. The fabric only reads a send's buffer.
  transfer->data = const_cast<std::byte*>(static_cast<const std::byte*>(data));
  transfer->bytes = bytes;
  return Post({rank_, peer, tag}, transfer);
}

absl::StatusOr<WireLink::RequestId> FabricLink::Receive(int peer, int tag, void* data, size_t bytes,
                                                        Length length) {
  WEFT_RETURN_IF_ERROR(CheckEnvelope(peer, fabric_->ranks(), tag, max_tag()));
  auto transfer = std::make_shared<FabricTransfer>();
  transfer->data = static_cast<std::byte*>(data);
  transfer->bytes = bytes;
  transfer->length = length;
  return Post({peer, rank_, tag}, transfer);
}

// Nothing to do: the fabric completes messages.
absl::Status FabricLink::Poll() { return absl::OkStatus(); }

absl::StatusOr<bool> FabricLink::Test(RequestId request) {
  const auto found = requests_.find(request);
  WEFT_CHECK(found != requests_.end(), "Test of a request that is not in flight");
  if (!found->second.transfer->done.load(std::memory_order_acquire)) return false;
  const std::shared_ptr<FabricTransfer> transfer = std::move(found->second.transfer);
  requests_.erase(found);
  WEFT_RETURN_IF_ERROR(transfer->outcome);
  return true;
}

bool FabricLink::Cancel(RequestId request) {
  const auto found = requests_.find(request);
  WEFT_CHECK(found != requests_.end(), "Cancel of a request that is not in flight");
  if (!fabric_->Withdraw(found->second.channel, *found->second.transfer)) return false;
  requests_.erase(found);
  return true;
}

absl::Status FabricLink::SendControlMessage(int peer, std::string_view bytes) {
  WEFT_RETURN_IF_ERROR(CheckControlMessage(peer, fabric_->ranks(), bytes.size()));
  fabric_->PushControlMessage(rank_, peer, bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<WireLink::ControlMessage>> FabricLink::PollControlMessage() {
  return fabric_->PopControlMessage(rank_);
}

}  // namespace weft::internal
