// A wire whose other end is the test.
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
  struct Transfer {
    bool send;
    int peer;
    int tag;
    const void* memory;
    size_t bytes;
    Length length = Length::kExact;  // Of a receive.
  };

  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override {
    return Post({true, peer, tag, data, bytes});
  }
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes, Length length) override {
    return Post({false, peer, tag, data, bytes, length});
  }
  absl::Status Poll() override {
    if (transport.ok()) notes_unsent -= std::min(notes_unsent, 1);
    return transport;
  }
  absl::StatusOr<bool> Test(RequestId request) override {
    const auto found = outcomes.find(request);
    if (found == outcomes.end()) return false;
    const absl::Status outcome = found->second;
    outcomes.erase(found);
    under_way.erase(request);
    if (!outcome.ok()) return outcome;
    return true;
  }
  bool Cancel(RequestId receive) override {
    ++cancelled;
    EXPECT_TRUE(under_way.contains(receive)) << "cancelled something that is not under way";
    if (arriving.contains(receive)) return false;
    under_way.erase(receive);
    return true;
  }
  absl::Status SendNote(int peer, std::string_view bytes) override {
    sent_notes.push_back({peer, std::string(bytes)});
    return absl::OkStatus();
  }
  bool HasUnsentNotes() const override { return notes_unsent > 0; }
  absl::StatusOr<std::optional<Note>> PollNote() override {
    if (notes.empty()) return std::optional<Note>();
    Note note = std::move(notes.front());
    notes.pop_front();
    return std::optional<Note>(std::move(note));
  }
  int max_tag() const override { return 1 << 20; }

  // What the next Test of it says.
  void Finish(RequestId request, absl::Status outcome = absl::OkStatus()) {
    outcomes[request] = std::move(outcome);
  }
  void FinishAll() {
    for (const auto& [request, transfer] : under_way) Finish(request);
  }

  std::map<RequestId, Transfer> under_way;  // In the order of posting.
  std::set<RequestId> arriving;             // Too late to cancel.
  std::map<RequestId, absl::Status> outcomes;
  std::vector<Note> sent_notes;
  std::deque<Note> notes;
  absl::Status transport;  // What Poll says.
  int notes_unsent = 0;    // One leaves with each Poll.
  int cancelled = 0;

 private:
  absl::StatusOr<RequestId> Post(const Transfer& transfer) {
    under_way.emplace(next_, transfer);
    return next_++;
  }
  RequestId next_ = 1;
};

}  // namespace weft::testing
