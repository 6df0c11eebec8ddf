// A link that hands every call on to another one. Tests derive from it and change single calls.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "weft/mesh/wire_link.h"

namespace weft::testing {

class ForwardingLink : public WireLink {
 public:
  explicit ForwardingLink(std::unique_ptr<WireLink> base) : base_(std::move(base)) {}

  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override {
    return base_->Send(peer, tag, data, bytes);
  }
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes, Length length) override {
    return base_->Receive(peer, tag, data, bytes, length);
  }
  absl::Status Poll() override { return base_->Poll(); }
  absl::StatusOr<bool> Test(RequestId request) override { return base_->Test(request); }
  bool Cancel(RequestId request) override { return base_->Cancel(request); }
  absl::Status SendControlMessage(int peer, std::string_view bytes) override {
    return base_->SendControlMessage(peer, bytes);
  }
  bool HasUnsentControlMessages() const override { return base_->HasUnsentControlMessages(); }
  absl::StatusOr<std::optional<ControlMessage>> PollControlMessage() override {
    return base_->PollControlMessage();
  }
  absl::Span<const LostPeer> LostPeers() const override { return base_->LostPeers(); }
  std::string DescribeUnanswered() const override { return base_->DescribeUnanswered(); }
  int max_tag() const override { return base_->max_tag(); }
  bool has_rendezvous() const override { return base_->has_rendezvous(); }

 private:
  std::unique_ptr<WireLink> base_;
};

}  // namespace weft::testing
