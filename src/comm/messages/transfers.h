// The two ends of one point-to-point message, once it is announced or matched. See Note [Messages].
//
// Thread safety: all members are called under the core's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/comm/links/credit_scheduler.h"
#include "src/comm/messages/signal.h"
#include "src/comm/phases/sends.h"
#include "src/comm/phases/streams.h"

namespace weft {

// Sends a signal to the other end of a message.
class SignalSender {
 public:
  virtual absl::Status Send(int peer, const Signal& signal) = 0;

 protected:
  ~SignalSender() = default;
};

// Address of a buffer that lies wholly in one segment of node memory, else rank -1.
NodeAddress MessageBufferAddress(const NodeLink& node, const std::byte* data, int64_t bytes);

// A message that this rank sends.
class OutgoingMessage {
 public:
  // `is_remote`: the receiver is on another node.
  OutgoingMessage(std::shared_ptr<OperationRecord> record, bool is_remote)
      : record_(std::move(record)), is_remote_(is_remote) {}

  const std::shared_ptr<OperationRecord>& record() const { return record_; }
  const MessageRequest& message() const { return *record_->message; }
  uint64_t number() const { return record_->descriptor.sequence; }
  bool is_remote() const { return is_remote_; }
  CreditScheduler::Channel channel() const;
  Signal Announcement(const NodeLink& node) const;

  // The receiver has matched the message.
  bool granted() const { return granted_; }
  // Between nodes: a credit has arrived.
  void OnCredit(const OperationContext& context);
  // Within the node: kGrant, kPulled or kConsumed. Errors: kInternal (it does not fit the state of the
  // message).
  absl::Status OnSignal(OperationContext& context, const Signal& signal);
  // Advances. REQUIRES: granted().
  absl::StatusOr<bool> Step(OperationContext& context, SignalSender& signals, bool awaits_receiver);
  bool finished() const { return finished_; }

 private:
  absl::Status Stage(OperationContext& context);
  absl::StatusOr<bool> StepStaging(OperationContext& context, SignalSender& signals, bool awaits_receiver);

  std::shared_ptr<OperationRecord> record_;
  const bool is_remote_;
  bool granted_ = false;
  bool finished_ = false;
  std::optional<SendStream> sending_;
  std::optional<CopyStream> copying_;  // Into the receiver's buffer, or into the ring.
  Buffer ring_;                        // Set if pieces are staged.
  int64_t pieces_ = 0;
  int64_t staged_ = 0;    // Pieces that the receiver has been told of.
  int64_t consumed_ = 0;  // Pieces that the receiver has copied.
};

// A message that this rank receives, from the match on.
class IncomingMessage {
 public:
  IncomingMessage(std::shared_ptr<OperationRecord> record, int source, const Signal& announcement,
                  bool is_remote)
      : record_(std::move(record)), source_(source), announcement_(announcement), is_remote_(is_remote) {}

  const std::shared_ptr<OperationRecord>& record() const { return record_; }
  int source() const { return source_; }
  uint64_t number() const { return announcement_.number; }
  bool is_remote() const { return is_remote_; }
  CreditScheduler::Channel channel() const;

  // Begins the transfer. `own_source`: the sender's buffer if the sender is this rank, else null.
  // REQUIRES: between nodes, no other message uses channel().
  absl::Status Begin(OperationContext& context, SignalSender& signals, const std::byte* own_source);
  bool begun() const { return begun_; }
  // Within the node: kPushed or kStaged. Errors: kInternal (it does not fit the state of the message).
  absl::Status OnSignal(OperationContext& context, const Signal& signal);
  // Advances. REQUIRES: begun().
  absl::StatusOr<bool> Step(OperationContext& context, SignalSender& signals);
  bool finished() const { return finished_; }

 private:
  std::byte* target() const { return record_->message->data; }
  Slicing SlicingOf(int64_t slice_bytes) const { return {announcement_.bytes, slice_bytes}; }
  absl::Status Reply(SignalSender& signals, SignalKind kind, int64_t pieces, NodeAddress address) const;

  std::shared_ptr<OperationRecord> record_;
  const int source_;
  const Signal announcement_;
  const bool is_remote_;
  bool begun_ = false;
  bool granted_ = false;  // This rank has sent kGrant.
  bool finished_ = false;
  std::optional<ReceiveStream> receiving_;
  std::optional<CopyStream> copying_;  // Out of the sender's buffer, or out of its ring.
  bool from_ring_ = false;
  int64_t staged_ = 0;    // Pieces that the sender has staged.
  int64_t consumed_ = 0;  // Pieces that the sender has been told of.
};

}  // namespace weft
