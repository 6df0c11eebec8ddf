// A core of rank 0 that its owner polls. Rank 1 is on its node, rank 2 on another; the owner writes what they
// send.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "src/comm/engine/engine_core.h"
#include "tests/comm/links/fake_wire_link.h"

namespace weft::testing {

// Sets a field of a message to a number that its type may not name.
template <typename T>
void SetByte(T& field, uint8_t value) {
  static_assert(sizeof(T) == 1);
  std::memcpy(&field, &value, 1);
}

class CoreEnd {
 public:
  // Lanes of rank 0 and rank 2, in this order and in the other.
  static constexpr int kLane = 0;
  static constexpr int kReversedLane = 1;
  // A lane of rank 0 and rank 1, which submits nothing.
  static constexpr int kNodeLane = 2;

  // REQUIRES: there is no other.
  CoreEnd();

  // Writes the bytes of a signal to this rank's mailbox, as rank 1.
  void SendOnNode(std::string_view bytes);
  // Bytes of a control message of rank 2.
  void SendOverWire(std::string_view bytes) { wire_.messages.push_back({2, std::string(bytes)}); }
  // Declares that all slices that the core receives and sends have arrived. Receives keep their old bytes.
  void FinishTransfers() { wire_.FinishAll(); }
  // Fails all of them in the next poll.
  void FailTransfers(const absl::Status& cause) {
    for (const auto& [request, transfer] : wire_.in_flight) wire_.Finish(request, cause);
  }
  void SleepFor(int64_t ns) { now_ns_ += ns; }
  // Polls and moves data until nothing advances.
  void Poll();

  // A message of `bytes` bytes of tag 0, to or from a rank.
  std::shared_ptr<OperationRecord> SubmitMessage(OpKind kind, int peer, int64_t bytes, bool in_node_memory);
  // An all-gather on kLane, and a small all-reduce, of this many f32.
  void SubmitAllGather(int64_t count);
  std::shared_ptr<OperationRecord> SubmitSum(int64_t count, int lane = kLane);
  // An operation on kNodeLane.
  void SubmitOnNode(std::unique_ptr<Operation> operation);
  // Counts rank 1 among those that have consumed an operation on kNodeLane.
  static void ConsumeOnNode(uint64_t sequence);
  // True if this rank has told rank 1 that it leaves kNodeLane, in place of an operation.
  static bool HasLeftOnNode(uint64_t sequence);

  // Tells peers that this rank submits nothing more.
  void Leave();

  EngineCore& core() { return *core_; }
  // Operations that have been submitted.
  int64_t operations() const {
    return static_cast<int64_t>(messages_ + collectives_[0] + collectives_[1] + collectives_[2]);
  }
  const FakeWireLink& wire() const { return wire_; }
  // An address in node memory that rank 1 owns.
  static NodeAddress AddressOnNode();
  // The failure that this rank has told rank 1.
  static std::optional<NodeLink::FailureNotice> FailureOnNode();

 private:
  static EngineOptions SmallPieces();
  std::byte* Memory(int64_t bytes, bool in_node_memory);
  std::shared_ptr<OperationRecord> NewCollective(OpKind kind, int64_t count, int lane);

  const EngineOptions options_ = SmallPieces();
  Recorder recorder_{/*rank=*/0, /*ranks=*/3, /*entries=*/16};
  const SystemRuntime runtime_;
  TraceLog trace_{runtime_};
  EngineCounters counters_;
  FakeWireLink wire_;
  std::unique_ptr<BufferPool> scratch_;
  // Buffers of operations.
  std::vector<Buffer> node_memory_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::unique_ptr<EngineCore> core_;
  uint64_t messages_ = 0;
  std::array<uint64_t, 3> collectives_{};  // By lane.
  int64_t now_ns_ = 0;
};

}  // namespace weft::testing
