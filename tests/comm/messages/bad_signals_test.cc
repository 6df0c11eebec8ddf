// Signals that do not fit the state of the message that they are about. They are outside input: each is a
// failure of the engine, which names the peer, the message and the remedy, and which all ranks learn.
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/comm/messages/signal.h"
#include "tests/comm/links/scheduler_end.h"
#include "tests/comm/support/broadcast_failure.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

Signal SignalOf(SignalKind kind, uint64_t number) {
  Signal signal;
  signal.kind = kind;
  signal.number = number;
  return signal;
}

TEST(BadSignals, AboutAMessageThatIsNotKnownFailTheEngine) {
  for (const SignalKind kind : {SignalKind::kPushed, SignalKind::kStaged, SignalKind::kGrant,
                                SignalKind::kPulled, SignalKind::kConsumed}) {
    SCOPED_TRACE(Name(kind));
    CoreEnd on_node;
    on_node.SendOnNode(WireBytes(SignalOf(kind, 99)));
    ExpectBroadcastFailure(on_node, {"rank 1", "message 99", std::string(Name(kind))});
  }
}

TEST(BadSignals, AboutAMessageOfAnotherRankFailTheEngine) {
  for (const SignalKind kind : {SignalKind::kGrant, SignalKind::kPulled, SignalKind::kConsumed}) {
    CoreEnd end;
    end.SubmitMessage(OpKind::kSend, /*peer=*/2, 100, /*in_node_memory=*/false);
    end.Poll();
    end.SendOnNode(WireBytes(SignalOf(kind, 1)));
    ExpectBroadcastFailure(end, {"rank 1", "message 1", "does not send to it"});
  }
}

TEST(BadSignals, ThatDoNotFitTheTransferFailTheEngine) {
  struct Case {
    const char* name;
    std::function<Signal()> make;
    std::string text;
  };
  const auto grant = [](NodeAddress address) {
    Signal signal = SignalOf(SignalKind::kGrant, 1);
    signal.address = address;
    return signal;
  };
  const auto consumed = [](int64_t pieces) {
    Signal signal = SignalOf(SignalKind::kConsumed, 1);
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
    end.SendOnNode(WireBytes(tested.make()));
    ExpectBroadcastFailure(end, {"rank 1", "message 1", tested.text});
  }
}

TEST(BadSignals, AboutGrantedAndStagedDataFailTheEngine) {
  const auto receive = [](CoreEnd& end) {
    Signal announcement = SignalOf(SignalKind::kAnnounce, 5);
    announcement.bytes = 1000;
    end.SendOnNode(WireBytes(announcement));
    end.SubmitMessage(OpKind::kReceive, /*peer=*/1, 1000, /*in_node_memory=*/false);
    end.Poll();
    ASSERT_OK(end.core().status());
  };
  const auto staged = [](int64_t pieces) {
    Signal signal = SignalOf(SignalKind::kStaged, 5);
    signal.pieces = pieces;
    signal.address = CoreEnd::AddressOnNode();
    return signal;
  };
  {
    CoreEnd end;
    receive(end);
    end.SendOnNode(WireBytes(staged(5)));
    ExpectBroadcastFailure(end, {"rank 1", "message 5", "5 pieces of 4"});
  }
  {
    Signal outside = staged(2);
    outside.address = {7, 0};
    CoreEnd end;
    receive(end);
    end.SendOnNode(WireBytes(outside));
    ExpectBroadcastFailure(end, {"rank 1", "message 5", "not in node memory"});
  }
  {
    CoreEnd end;
    receive(end);
    end.SendOnNode(WireBytes(staged(2)));
    end.SendOnNode(WireBytes(staged(2)));  // No more than before.
    ExpectBroadcastFailure(end, {"rank 1", "message 5", "2 pieces of 4"});
  }
  {
    CoreEnd end;
    receive(end);
    end.SendOnNode(WireBytes(staged(2)));
    end.Poll();
    ASSERT_OK(end.core().status());
    end.SendOnNode(WireBytes(SignalOf(SignalKind::kPushed, 5)));
    ExpectBroadcastFailure(end, {"rank 1", "message 5", "staged"});
  }
}

// Bytes of a legal signal, with one field changed.
struct Mutation {
  const char* name;
  std::function<void(Signal&)> change;
  std::string text;
};

TEST(BadSignals, WithAFieldOutOfRangeFailTheEngine) {
  for (const Mutation& mutation :
       {Mutation{"kind", [](Signal& s) { SetByte(s.kind, 77); }, "has the unknown kind 77"},
        Mutation{"dtype", [](Signal& s) { SetByte(s.dtype, 78); }, "has the unknown dtype 78"},
        Mutation{"elements", [](Signal& s) { SetByte(s.elements, 79); },
                 "has the unknown kind of elements 79"},
        Mutation{"for_whole_node", [](Signal& s) { SetByte(s.for_whole_node, 2); },
                 "has the unknown field for_whole_node 2"},
        Mutation{"is_unused", [](Signal& s) { SetByte(s.is_unused, 3); },
                 "has the unknown field is_unused 3"},
        Mutation{"bytes", [](Signal& s) { s.bytes = -1; },
                 "'no more sends' of message 0, with a negative size"},
        Mutation{"pieces", [](Signal& s) { s.pieces = -1; },
                 "'no more sends' of message 0, with a negative size"},
        Mutation{"leaver", [](Signal& s) { s.leaver = -1; }, "about rank -1, but the last rank is 2"},
        Mutation{"leaver", [](Signal& s) { s.leaver = 3; }, "about rank 3, but the last rank is 2"}}) {
    SCOPED_TRACE(mutation.name);
    Signal signal = SignalOf(SignalKind::kNoMoreSends, 0);
    signal.leaver = 1;
    {
      CoreEnd end;
      end.SendOnNode(WireBytes(signal));
      end.Poll();
      ASSERT_OK(end.core().status()) << "the signal is legal before the change";
    }
    mutation.change(signal);
    CoreEnd end;
    end.SendOnNode(WireBytes(signal));
    ExpectBroadcastFailure(end, {"rank 1", mutation.text});
  }
}

TEST(BadSignals, OfAnotherLengthFailTheEngine) {
  const std::string legal(WireBytes(SignalOf(SignalKind::kInterest, 0)));
  for (const std::string& bytes : {legal.substr(1), legal + "x", std::string()}) {
    CoreEnd end;
    end.SendOnNode(bytes);
    ExpectBroadcastFailure(end,
                           {"a message signal from rank 1 has " + std::to_string(bytes.size()) + " bytes"});
  }
}

// The address of the sender's buffer. Rank 1 names one that node memory does not hold.
TEST(BadSignals, WithABufferOutsideOfNodeMemoryFailTheEngine) {
  for (const NodeAddress& address :
       {NodeAddress{7, 0}, NodeAddress{1, uint64_t{1} << 22}, NodeAddress{2, 0}}) {
    Signal announcement = SignalOf(SignalKind::kAnnounce, 5);
    announcement.bytes = 1000;
    announcement.address = address;
    CoreEnd end;
    end.SendOnNode(WireBytes(announcement));
    end.SubmitMessage(OpKind::kReceive, /*peer=*/1, 1000, /*in_node_memory=*/false);
    ExpectBroadcastFailure(end, {"rank 1", "message 5", "not in node memory"});
  }
}

TEST(BadSignals, OfAGrantedMessageFailTheEngine) {
  for (const SignalKind kind : {SignalKind::kGrant, SignalKind::kPulled}) {
    SCOPED_TRACE(Name(kind));
    CoreEnd end;
    end.SubmitMessage(OpKind::kSend, /*peer=*/1, 5000, /*in_node_memory=*/false);
    end.Poll();
    end.SendOnNode(WireBytes(SignalOf(SignalKind::kGrant, 1)));
    end.Poll();
    ASSERT_OK(end.core().status());
    end.SendOnNode(WireBytes(SignalOf(kind, 1)));
    ExpectBroadcastFailure(end, {"rank 1", "message 1", "which has been granted before"});
  }
}

// Rank 2 is on another node: its messages get credits.
TEST(BadSignals, OfTheNodeAboutAMessageToAnotherNodeFailTheEngine) {
  CoreEnd end;
  end.SubmitMessage(OpKind::kSend, /*peer=*/2, 100, /*in_node_memory=*/false);
  end.Poll();
  SchedulerEnd peer;
  EXPECT_OK(peer.mail.SendSignal(0, WireBytes(SignalOf(SignalKind::kPulled, 1))));
  end.SendOverWire(peer.link.sent_messages.back().bytes);
  ExpectBroadcastFailure(end, {"rank 2", "message 1", "which goes to another node"});
}

// The receiver copies out of the sender's node memory, and awaits no signal.
TEST(BadSignals, OfDataThatNoReceiveAwaitsFailTheEngine) {
  Signal announcement = SignalOf(SignalKind::kAnnounce, 5);
  announcement.bytes = int64_t{1} << 15;
  announcement.address = CoreEnd::AddressOnNode();
  CoreEnd end;
  end.SubmitMessage(OpKind::kReceive, /*peer=*/1, announcement.bytes, /*in_node_memory=*/false);
  end.SendOnNode(WireBytes(announcement));
  end.SendOnNode(WireBytes(SignalOf(SignalKind::kPushed, 5)));
  ExpectBroadcastFailure(end, {"rank 1", "message 5", "which awaits no data"});
}

}  // namespace
}  // namespace weft::testing
