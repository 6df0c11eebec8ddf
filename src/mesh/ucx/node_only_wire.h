// WireLink of a machine without UCX, for ranks that are all on one node: it refuses every message.
//
// An engine opens a link in any case. It sends messages to ranks of other nodes only.
#pragma once

#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "weft/mesh/wire_link.h"

namespace weft::internal {

class NodeOnlyWire final : public WireLink {
 public:
  // `reason`: why there is no link that carries messages.
  explicit NodeOnlyWire(absl::Status reason) : reason_(std::move(reason)) {}

  absl::StatusOr<RequestId> Send(int /*peer*/, int /*tag*/, const void* /*data*/, size_t /*bytes*/) override {
    return reason_;
  }
  absl::StatusOr<RequestId> Receive(int /*peer*/, int /*tag*/, void* /*data*/, size_t /*bytes*/,
                                    Length /*length*/) override {
    return reason_;
  }
  absl::Status Poll() override { return absl::OkStatus(); }
  absl::StatusOr<bool> Test(RequestId /*request*/) override { return reason_; }
  bool Cancel(RequestId /*request*/) override { return true; }
  absl::Status SendControlMessage(int /*peer*/, std::string_view /*bytes*/) override { return reason_; }
  bool HasUnsentControlMessages() const override { return false; }
  absl::StatusOr<std::optional<ControlMessage>> PollControlMessage() override {
    return std::optional<ControlMessage>();
  }
  int max_tag() const override { return std::numeric_limits<int>::max(); }

 private:
  const absl::Status reason_;
};

}  // namespace weft::internal
