// Control messages that do not fit the state of what they are about. They are outside input: each is a
// failure of the engine, which names the peer, the message and the remedy, and which all ranks learn.
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/comm/messages/signal.h"
#include "tests/comm/links/scheduler_end.h"
#include "tests/comm/support/core_end.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

Signal Of(SignalKind kind, uint64_t number) {
  Signal signal;
  signal.kind = kind;
  signal.number = number;
  return signal;
}

void ExpectToldFailure(CoreEnd& end, const std::vector<std::string>& texts) {
  end.Poll();
  const absl::Status& status = end.core().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  for (const std::string& text : texts) EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  EXPECT_THAT(std::string(status.message()), HasSubstr("run the same version of weft on all ranks"));
  ASSERT_TRUE(CoreEnd::FailureOnNode().has_value());
  EXPECT_EQ(CoreEnd::FailureOnNode()->cause, status);
  ASSERT_FALSE(end.wire().sent_messages.empty());
  EXPECT_EQ(end.wire().sent_messages.back().peer, 2);
  EXPECT_THAT(end.wire().sent_messages.back().bytes, HasSubstr(std::string(status.message())));
}

TEST(BadSignals, AboutAMessageThatIsNotKnownFailTheEngine) {
  for (const SignalKind kind : {SignalKind::kPushed, SignalKind::kStaged, SignalKind::kGrant,
                                SignalKind::kPulled, SignalKind::kConsumed}) {
    SCOPED_TRACE(Name(kind));
    CoreEnd on_node;
    on_node.SendOnNode(BytesOf(Of(kind, 99)));
    ExpectToldFailure(on_node, {"rank 1", "message 99", std::string(Name(kind))});
  }
}

TEST(BadSignals, AboutAMessageOfAnotherRankFailTheEngine) {
  for (const SignalKind kind : {SignalKind::kGrant, SignalKind::kPulled, SignalKind::kConsumed}) {
    CoreEnd end;
    end.SubmitMessage(OpKind::kSend, /*peer=*/2, 100, /*in_node_memory=*/false);
    end.Poll();
    end.SendOnNode(BytesOf(Of(kind, 1)));
    ExpectToldFailure(end, {"rank 1", "message 1", "does not send to it"});
  }
}

TEST(BadSignals, ThatDoNotFitTheTransferFailTheEngine) {
  struct Case {
    const char* name;
    std::function<Signal()> make;
    std::string text;
  };
  const auto grant = [](NodeAddress address) {
    Signal signal = Of(SignalKind::kGrant, 1);
    signal.address = address;
    return signal;
  };
  const auto consumed = [](int64_t pieces) {
    Signal signal = Of(SignalKind::kConsumed, 1);
    signal.pieces = pieces;
    return signal;
  };
  for (const Case& tested : {Case{"a rank that is none",
                                  [&] {
                                    return grant({7, 0});
                                  },
                                  "not in node memory"},
                             Case{"the least rank",
                                  [&] {
                                    return grant({INT_MIN, 0});
                                  },
                                  "not in node memory"},
                             Case{"behind a segment",
                                  [&] {
                                    return grant({1, uint64_t{1} << 22});
                                  },
                                  "not in node memory"},
                             Case{"pieces that are not staged", [&] { return consumed(1); }, "1 pieces"}}) {
    SCOPED_TRACE(tested.name);
    CoreEnd end;
    end.SubmitMessage(OpKind::kSend, /*peer=*/1, 1000, /*in_node_memory=*/false);
    end.Poll();
    end.SendOnNode(BytesOf(tested.make()));
    ExpectToldFailure(end, {"rank 1", "message 1", tested.text});
  }
}

TEST(BadSignals, AboutGrantedAndStagedDataFailTheEngine) {
  const auto receive = [](CoreEnd& end) {
    Signal announcement = Of(SignalKind::kAnnounce, 5);
    announcement.bytes = 1000;
    end.SendOnNode(BytesOf(announcement));
    end.SubmitMessage(OpKind::kReceive, /*peer=*/1, 1000, /*in_node_memory=*/false);
    end.Poll();
    ASSERT_OK(end.core().status());
  };
  const auto staged = [](int64_t pieces) {
    Signal signal = Of(SignalKind::kStaged, 5);
    signal.pieces = pieces;
    signal.address = CoreEnd::AddressOnNode();
    return signal;
  };
  {
    CoreEnd end;
    receive(end);
    end.SendOnNode(BytesOf(staged(5)));
    ExpectToldFailure(end, {"rank 1", "message 5", "5 pieces of 4"});
  }
  {
    CoreEnd end;
    receive(end);
    end.SendOnNode(BytesOf(staged(2)));
    end.Poll();
    ASSERT_OK(end.core().status());
    end.SendOnNode(BytesOf(Of(SignalKind::kPushed, 5)));
    ExpectToldFailure(end, {"rank 1", "message 5", "staged"});
  }
}

TEST(BadSignals, OfUnknownKindsAndRanksFailTheEngine) {
  Signal about_nobody = Of(SignalKind::kNoMoreSends, 0);
  about_nobody.leaver = 3;
  std::string unknown(BytesOf(Of(SignalKind::kInterest, 0)));
  unknown[offsetof(Signal, kind)] = 77;
  std::string no_bool(BytesOf(Of(SignalKind::kInterest, 0)));
  no_bool[offsetof(Signal, tells_node)] = 2;
  for (const auto& [bytes, text] :
       {std::pair{std::string(BytesOf(about_nobody)), "about rank 3"}, std::pair{unknown, "unknown kind 77"},
        std::pair{no_bool, "unknown field tells_node 2"}}) {
    CoreEnd end;
    end.SendOnNode(bytes);
    ExpectToldFailure(end, {"rank 1", text});
  }
}

// The bytes of a credit that rank 2 gives this rank.
std::string Credit(const CreditScheduler::Channel& channel, const PartShape& part, int64_t slices) {
  SchedulerEnd peer;
  std::vector<std::byte> memory(4096);
  EXPECT_OK(peer.scheduler.Receive(channel, WirePhase::kGather, Priority::kBulk, Descriptor{}, part,
                                   {0, memory.data(), memory.size(), WireLink::Length::kExact, true, slices},
                                   &peer.owner));
  return peer.link.sent_messages.back().bytes;
}

TEST(BadCredits, ForAMessageThatIsNotKnownFailTheEngine) {
  CoreEnd end;
  end.SendOverWire(Credit({kMessageLane, 9, 0, 1}, PartShape::OneDim(100), 1));
  ExpectToldFailure(end, {"rank 2", "message 9"});
}

TEST(BadCredits, ForMoreSlicesThanAMessageHasFailTheEngine) {
  CoreEnd end;
  end.SubmitMessage(OpKind::kSend, /*peer=*/2, 1000, /*in_node_memory=*/false);
  end.Poll();
  end.SendOverWire(Credit({kMessageLane, 1, 0, 1 % TagLayout::kMessages}, PartShape::OneDim(1000), 3));
  ExpectToldFailure(end, {"rank 2", "3 slices of a part of 2", "send of 1000 bytes"});
}

TEST(BadControlMessages, FailTheEngine) {
  const std::string credit = Credit({0, 1, 0, 1}, PartShape::OneDim(100), 1);
  const auto with = [](std::string bytes, size_t offset, char value) {
    bytes[offset] = value;
    return bytes;
  };
  for (const auto& [bytes, text] :
       {std::pair{with(credit, 0, 66), "unknown kind 66"},
        // The number of slices, and the last byte, of a bool or padding of the descriptor.
        std::pair{with(credit, 15, '\x80'), "slices of a part"},
        std::pair{std::string(1, '\4'), "message signal"}}) {
    CoreEnd end;
    end.SendOverWire(bytes);
    ExpectToldFailure(end, {"rank 2", text});
  }
}

}  // namespace
}  // namespace weft::testing
