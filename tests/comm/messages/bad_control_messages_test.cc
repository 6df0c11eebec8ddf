// Control messages of another node that no rank of this version sends: legal ones with one field changed.
// Each is a failure of the engine, which names the peer and the remedy, and which all ranks learn.
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "src/comm/links/control_messages.h"
#include "src/comm/links/late_rank_messages.h"
#include "tests/comm/links/scheduler_end.h"
#include "tests/comm/support/broadcast_failure.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

// The bytes of the last control message that rank 2 sends.
std::string SentBy(const std::function<void(SchedulerEnd&)>& send) {
  SchedulerEnd peer;
  send(peer);
  return peer.link.sent_messages.back().bytes;
}

// A credit for slices of a part.
std::string Credit(const CreditScheduler::Channel& channel, const PartShape& part, int64_t slices) {
  return SentBy([&](SchedulerEnd& peer) {
    std::vector<std::byte> memory(4096);
    EXPECT_OK(peer.scheduler.Receive(
        channel, WirePhase::kGather, Priority::kBulk, Descriptor{}, part,
        {0, memory.data(), memory.size(), WireLink::Length::kExact, true, slices}, &peer.owner));
  });
}

constexpr int64_t kSum = 3;  // Elements of the all-reduces.

Descriptor SumDescriptor() {
  Descriptor descriptor;
  descriptor.sequence = 1;
  descriptor.kind = OpKind::kAllReduce;
  descriptor.total_count = kSum;
  return descriptor;
}

// A sum of rank 2, or the result, on an edge of the tree.
std::string Partial(int lane, int edge, size_t bytes) {
  return SentBy([&](SchedulerEnd& peer) {
    EXPECT_OK(peer.scheduler.SendPartial(0, lane, edge, SumDescriptor(), std::string(bytes, '\0')));
  });
}

std::string FailureNotice() {
  return SentBy([](SchedulerEnd& peer) {
    peer.mail.BroadcastFailure({2, absl::AbortedError("stopped")}, {0});
  });
}

template <typename Message>
std::string With(std::string bytes, const std::function<void(Message&)>& change) {
  Message message;
  std::memcpy(&message, bytes.data(), sizeof(message));
  change(message);
  std::memcpy(bytes.data(), &message, sizeof(message));
  return bytes;
}

void ExpectRefused(const std::string& bytes, const std::string& text) {
  SCOPED_TRACE(text);
  CoreEnd end;
  end.SendOverWire(bytes);
  ExpectBroadcastFailure(end, {"rank 2", text});
}

void ExpectAccepted(const std::string& bytes) {
  CoreEnd end;
  end.SendOverWire(bytes);
  end.Poll();
  EXPECT_OK(end.core().status());
}

struct DescriptorMutation {
  std::function<void(Descriptor&)> change;
  std::string text;
};

std::vector<DescriptorMutation> DescriptorMutations() {
  return {{[](Descriptor& d) { SetByte(d.kind, 70); }, "the unknown kind 70"},
          {[](Descriptor& d) { SetByte(d.dtype, 71); }, "the unknown dtype 71"},
          {[](Descriptor& d) { SetByte(d.reduce, 72); }, "the unknown reduction 72"},
          {[](Descriptor& d) { SetByte(d.wire_compression, 73); }, "the unknown wire compression 73"},
          {[](Descriptor& d) { SetByte(d.elements, 74); }, "the unknown kind of elements 74"},
          {[](Descriptor& d) { SetByte(d.any_dtype, 2); }, "the unknown field any_dtype 2"},
          {[](Descriptor& d) { SetByte(d.leaves, 3); }, "the unknown field leaves 3"},
          {[](Descriptor& d) { SetByte(d.input_in_ring, 4); }, "the unknown field input_in_ring 4"},
          {[](Descriptor& d) { SetByte(d.output_in_ring, 5); }, "the unknown field output_in_ring 5"}};
}

TEST(BadCredits, ForAMessageThatIsNotKnownFailTheEngine) {
  ExpectRefused(Credit({kMessageLane, 9, 0, 1}, PartShape::OneDim(100), 1), "message 9");
}

TEST(BadCredits, ForAMessageToAnotherRankFailTheEngine) {
  CoreEnd end;
  end.SubmitMessage(OpKind::kSend, /*peer=*/1, 1000, /*in_node_memory=*/false);
  end.Poll();
  end.SendOverWire(Credit({kMessageLane, 1, 0, 1}, PartShape::OneDim(1000), 1));
  ExpectBroadcastFailure(end, {"rank 2", "credit for message 1, which this rank does not send to it"});
}

TEST(BadCredits, ForMoreSlicesThanAMessageHasFailTheEngine) {
  CoreEnd end;
  end.SubmitMessage(OpKind::kSend, /*peer=*/2, 1000, /*in_node_memory=*/false);
  end.Poll();
  end.SendOverWire(Credit({kMessageLane, 1, 0, 1 % TagLayout::kMessages}, PartShape::OneDim(1000), 3));
  ExpectBroadcastFailure(end, {"rank 2", "3 slices of a part of 2", "send of 1000 bytes"});
}

TEST(BadCredits, WithAFieldOutOfRangeFailTheEngine) {
  const std::string legal = Credit({0, 1, 0, 1}, PartShape::OneDim(100), 1);
  ExpectAccepted(legal);
  const auto with = [&](const std::function<void(CreditMessage&)>& change) {
    return With<CreditMessage>(legal, change);
  };
  ExpectRefused(with([](CreditMessage& m) { m.slices = -1; }), "-1 slices of a part of 1 dims");
  ExpectRefused(with([](CreditMessage& m) { m.part.dims = -1; }), "1 slices of a part of -1 dims");
  ExpectRefused(with([](CreditMessage& m) { m.part.dims = PartShape::kMaxDims + 1; }),
                "1 slices of a part of 6 dims");
  for (const DescriptorMutation& mutation : DescriptorMutations()) {
    ExpectRefused(with([&](CreditMessage& m) { mutation.change(m.descriptor); }),
                  "a credit message from rank 2 has " + mutation.text);
  }
}

TEST(BadCredits, OfAnotherLengthFailTheEngine) {
  const std::string legal = Credit({0, 1, 0, 1}, PartShape::OneDim(100), 1);
  for (const std::string& bytes : {legal.substr(0, legal.size() - 1), legal + "x"})
    ExpectRefused(bytes, "a credit message from rank 2 has " + std::to_string(bytes.size()) + " bytes");
}

TEST(BadPartials, WithAFieldOutOfRangeFailTheEngine) {
  const std::string legal = Partial(CoreEnd::kLane, /*edge=*/1, kSum * sizeof(float));
  ExpectAccepted(legal);
  for (const DescriptorMutation& mutation : DescriptorMutations()) {
    ExpectRefused(With<PartialHeader>(legal, [&](PartialHeader& m) { mutation.change(m.descriptor); }),
                  "a partial sum from rank 2 has " + mutation.text);
  }
}

TEST(BadPartials, WithoutAWholeHeaderFailTheEngine) {
  const std::string legal = Partial(CoreEnd::kLane, /*edge=*/1, 0);
  ExpectAccepted(legal);
  ExpectRefused(legal.substr(0, legal.size() - 1), "a partial sum from rank 2 has ");
}

// Rank 0 adds the sum of rank 2. In the other lane it awaits the result.
TEST(BadPartials, OfAnotherLengthThanTheSumFailTheEngine) {
  for (const auto& [lane, edge] : {std::pair{CoreEnd::kLane, 1}, {CoreEnd::kReversedLane, 0}}) {
    SCOPED_TRACE(lane);
    constexpr size_t kBytes = kSum * sizeof(float);
    for (const size_t bytes : {size_t{0}, kBytes - 1, kBytes + 1, 2 * kBytes}) {
      CoreEnd end;
      end.SubmitSum(kSum, lane);
      end.SendOverWire(Partial(lane, edge, bytes));
      ExpectBroadcastFailure(end, {"rank 2 has sent " + std::to_string(bytes) + " bytes for a sum of 12",
                                   "all_reduce of 3 f32"});
    }
    CoreEnd end;
    const auto sum = end.SubmitSum(kSum, lane);
    end.SendOverWire(Partial(lane, edge, kBytes));
    end.Poll();
    EXPECT_OK(end.core().status());
    EXPECT_TRUE(sum->IsReady());
  }
}

TEST(BadFailureNotices, WithAFieldOutOfRangeFailTheEngine) {
  const std::string legal = FailureNotice();
  for (const int32_t code : {-1, 0, 17}) {
    ExpectRefused(With<FailureHeader>(legal, [&](FailureHeader& m) { m.code = code; }),
                  "a failure notice from rank 2 has the status code " + std::to_string(code));
  }
  ExpectRefused(legal.substr(0, sizeof(FailureHeader) - 1), "a failure notice from rank 2 has 11 bytes");
}

TEST(BadLateRankMessages, WithAFieldOutOfRangeFailTheEngine) {
  constexpr LateRankQuestion kQuestion{0, {0, 1}};
  const auto answer = [&](size_t late, size_t silent) {
    return SentBy([&](SchedulerEnd& peer) {
      peer.mail.Answer(0, {kQuestion, true, std::vector<int>(late, 1), std::vector<int>(silent, 1)});
    });
  };
  const std::string question = SentBy([&](SchedulerEnd& peer) { peer.mail.Ask(kQuestion); });
  const std::string none = answer(0, 0);
  ExpectAccepted(question);
  ExpectAccepted(none);
  for (const std::string& legal : {question, none}) {
    for (const std::string& bytes : {legal.substr(0, legal.size() - 1), legal + "x"}) {
      ExpectRefused(
          bytes, "a message about late ranks from rank 2 has " + std::to_string(bytes.size() - 1) + " bytes");
    }
  }
  const auto place_of = [&](const std::string& other) {
    return static_cast<size_t>(std::mismatch(none.begin(), none.end(), other.begin()).first - none.begin());
  };
  constexpr int kMost = LateRankAnswer::kMaxRanks;
  for (const auto& [place, names] :
       {std::pair{place_of(answer(1, 0)), std::function([](int count) {
                    return " names " + std::to_string(count) + " late and 0 silent ranks";
                  })},
        {place_of(answer(0, 1)),
         [](int count) { return " names 0 late and " + std::to_string(count) + " silent ranks"; }}}) {
    for (const int count : {-1, kMost + 1}) {
      std::string bytes = none;
      const auto value = static_cast<int16_t>(count);
      std::memcpy(bytes.data() + place, &value, sizeof(value));
      ExpectRefused(bytes, "a message about late ranks from rank 2" + names(count));
    }
  }
}

TEST(BadControlMessages, OfUnknownKindsFailTheEngine) {
  ExpectRefused(std::string(1, '\x42'), "a control message from rank 2 has the unknown kind 66");
  ExpectRefused("", "a control message from rank 2 has 0 bytes");
  ExpectRefused(std::string(1, static_cast<char>(ControlKind::kSignal)),
                "a message signal from rank 2 has 1 ");
}

}  // namespace
}  // namespace weft::testing
