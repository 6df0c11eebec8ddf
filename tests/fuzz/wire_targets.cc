#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "src/mesh/tcp/tcp_link.h"
#include "tests/comm/support/core_end.h"
#include "tests/fuzz/targets.h"
#include "tests/mesh/support/raw_tcp_peer.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// The steps of an input: a byte for the kind of step, two for the number of its own bytes, and these.
class Steps {
 public:
  explicit Steps(std::string_view bytes) : rest_(bytes) {}
  // False at the end.
  bool Next() {
    constexpr size_t kHeaderBytes = 3;
    if (rest_.size() < kHeaderBytes) return false;
    const size_t bytes = ByteAt(1) + 256 * ByteAt(2);
    kind = ByteAt(0);
    payload = rest_.substr(kHeaderBytes, bytes);
    rest_.remove_prefix(kHeaderBytes + payload.size());
    return true;
  }
  // A number of up to two bytes of the payload.
  int64_t Number(size_t place) const {
    const auto byte = [this](size_t i) { return i < payload.size() ? static_cast<uint8_t>(payload[i]) : 0; };
    return byte(place) + 256 * byte(place + 1);
  }

  size_t kind = 0;
  std::string_view payload;

 private:
  size_t ByteAt(size_t i) const { return static_cast<uint8_t>(rest_[i]); }
  std::string_view rest_;
};

enum Step : uint8_t { kWire, kNode, kSend, kReceive, kAllGather, kSum, kTransfers, kSleep, kSteps };

void Take(testing::CoreEnd& end, const Steps& steps) {
  constexpr int64_t kMostOperations = 64;
  constexpr int64_t kSecondNs = 1'000'000'000;
  const auto submit = [&](OpKind kind) {
    const int64_t choice = steps.Number(2);
    const int ranks = kind == OpKind::kReceive ? 4 : 3;
    const auto peer = static_cast<int>(choice % ranks);
    end.SubmitMessage(kind, peer == 3 ? kAnySource : peer, steps.Number(0) % 5000, choice / ranks % 2 == 1);
  };
  switch (steps.kind % kSteps) {
    case kWire:
      return end.SendOverWire(steps.payload.substr(0, WireLink::kMaxControlMessageBytes));
    case kNode:
      return end.SendOnNode(steps.payload.substr(0, Mailbox::kMaxBytes));
    case kTransfers:
      return end.FinishTransfers();
    case kSleep:
      return end.SleepFor(kSecondNs);
    default:
      break;
  }
  if (end.operations() == kMostOperations || !end.core().status().ok()) return;
  switch (steps.kind % kSteps) {
    case kSend:
      return submit(OpKind::kSend);
    case kReceive:
      return submit(OpKind::kReceive);
    case kAllGather:
      return end.SubmitAllGather(steps.Number(0) % 1000);
    default:
      end.SubmitSum(steps.Number(0) % 64);
  }
}

}  // namespace

int FuzzControlMessages(const uint8_t* data, size_t size) {
  testing::CoreEnd end;
  Steps steps({reinterpret_cast<const char*>(data), size});
  while (steps.Next()) {
    Take(end, steps);
    end.Poll();
  }
  end.Leave();
  end.Poll();
  WEFT_CHECK(end.core().status().ok() == !testing::CoreEnd::FailureOnNode().has_value(),
             "a failure is not told to the ranks of the node");
  return 0;
}

int FuzzTcpFrames(const uint8_t* data, size_t size) {
  constexpr size_t kPrefixBytes = 2;
  constexpr int kLastPolls = 4;
  constexpr std::array<size_t, 3> kReceives = {1, 100, 5000};  // Bytes, by tag.
  if (size < kPrefixBytes) return 0;
  const SystemRuntime runtime;
  auto listening = internal::TcpLink::Listen(0, "lo", runtime);
  WEFT_CHECK(listening.ok(), "no link");
  internal::TcpLink& link = **listening;
  link.SetPeers({link.endpoint(), link.endpoint()});
  std::vector<std::unique_ptr<char[]>> memory;  // Of the exact sizes: AddressSanitizer sees a write behind.
  std::vector<WireLink::RequestId> requests;
  const auto receive = [&](size_t tag) {
    const auto length = tag == 0 ? WireLink::Length::kExact : WireLink::Length::kAtMost;
    memory.push_back(std::make_unique<char[]>(kReceives[tag]));
    const auto request = link.Receive(1, static_cast<int>(tag), memory.back().get(), kReceives[tag], length);
    WEFT_CHECK(request.ok(), "a receive was refused");
    requests.push_back(*request);
  };
  receive(0);
  receive(1);
  auto peer = std::make_unique<testing::RawTcpPeer>(link.endpoint());
  if (data[0] % 2 == 0) peer->WriteFrame(testing::RawTcpPeer::GreetingOf(link.endpoint(), 1));
  const size_t chunk = 1 + 16 * size_t{data[1]} + size / 64;  // Long inputs take few writes.
  std::string_view rest(reinterpret_cast<const char*>(data) + kPrefixBytes, size - kPrefixBytes);
  while (!rest.empty()) {
    const std::optional<size_t> written = peer->Write(rest.substr(0, chunk));
    if (!written) break;
    rest.remove_prefix(*written);
    WEFT_CHECK(link.Poll().ok(), "a poll failed");
  }
  receive(1);
  receive(2);
  for (int poll = 0; poll < kLastPolls; ++poll) {
    if (poll == 1) peer.reset();
    WEFT_CHECK(link.Poll().ok(), "a poll failed");
  }
  for (const WireLink::RequestId request : requests) link.Test(request).IgnoreError();
  while (const auto control = link.PollControlMessage().value()) {
    WEFT_CHECK(control->peer == 1 && control->bytes.size() <= WireLink::kMaxControlMessageBytes,
               "a control message is too long");
  }
  return 0;
}

}  // namespace weft
