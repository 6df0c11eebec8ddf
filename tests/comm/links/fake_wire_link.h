// A WireLink whose remote end is the test.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "weft/mesh/wire_link.h"

namespace weft::testing {

class FakeWireLink final : public WireLink {
 public:
  explicit FakeWireLink(bool has_rendezvous = true) : has_rendezvous_(has_rendezvous) {}

  struct Transfer {
    bool send;
    int peer;
    int tag;
    const void* memory;
    size_t bytes;
    Length length = Length::kExact;  // Used by receives.
  };

  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override {
    return Post({true, peer, tag, data, bytes});
  }
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes, Length length) override {
    return Post({false, peer, tag, data, bytes, length});
  }
  absl::Status Poll() override {
    if (transport.ok()) unsent_messages -= std::min(unsent_messages, 1);
    return transport;
  }
  absl::StatusOr<bool> Test(RequestId request) override {
    const auto found = outcomes.find(request);
    if (found == outcomes.end()) return false;
    const absl::Status outcome = found->second;
    outcomes.erase(found);
    in_flight.erase(request);
    if (!outcome.ok()) return outcome;
    return true;
  }
  bool Cancel(RequestId receive) override {
    ++canceled;
    EXPECT_TRUE(in_flight.contains(receive)) << "canceled a request that is not in flight";
    if (uncancelable.contains(receive)) return false;
    in_flight.erase(receive);
    return true;
  }
  absl::Status SendControlMessage(int peer, std::string_view bytes) override {
    sent_messages.push_back({peer, std::string(bytes)});
    return absl::OkStatus();
  }
  bool HasUnsentControlMessages() const override { return unsent_messages > 0; }
  absl::StatusOr<std::optional<ControlMessage>> PollControlMessage() override {
    if (messages.empty()) return std::optional<ControlMessage>();
    ControlMessage message = std::move(messages.front());
    messages.pop_front();
    return std::optional<ControlMessage>(std::move(message));
  }
  absl::Span<const LostPeer> LostPeers() const override { return lost_peers; }
  int max_tag() const override { return 1 << 20; }
  bool has_rendezvous() const override { return has_rendezvous_; }

  // Sets the result of the next Test of a request.
  void Finish(RequestId request, absl::Status outcome = absl::OkStatus()) {
    outcomes[request] = std::move(outcome);
  }
  void FinishAll() {
    for (const auto& [request, transfer] : in_flight) Finish(request);
  }

  std::map<RequestId, Transfer> in_flight;  // In the order of posting.
  std::set<RequestId> uncancelable;         // Requests for which Cancel fails.
  std::map<RequestId, absl::Status> outcomes;
  std::vector<ControlMessage> sent_messages;
  std::deque<ControlMessage> messages;  // Messages to be delivered.
  std::vector<LostPeer> lost_peers;
  absl::Status transport;   // Result of Poll.
  int unsent_messages = 0;  // Each Poll sends one.
  int canceled = 0;

 private:
  absl::StatusOr<RequestId> Post(const Transfer& transfer) {
    in_flight.emplace(next_, transfer);
    return next_++;
  }
  const bool has_rendezvous_;
  RequestId next_ = 1;
};

}  // namespace weft::testing
