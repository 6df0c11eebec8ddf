// Point-to-point messages that no other rank submits.
#include <deque>
#include <limits>

#include <absl/strings/str_cat.h>
#include <climits>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/comm/support/message_sweep.h"
#include "tests/support/schedule_count.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

absl::StatusOr<EngineFixture> SmallFixture(Bootstrap& bootstrap) {
  return EngineFixture::Make(bootstrap, SmallSliceOptions(), size_t{8} << 20);
}

// Runs `send` on rank 0 and `receive` on rank 1. The other ranks make no call.
template <typename Send, typename Receive>
void RunPair(int ranks, const Send& send, const Receive& receive) {
  RunRanksOnEveryNodeMap(ranks, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, SmallFixture(bootstrap));
    if (bootstrap.rank() == 0) WEFT_RETURN_IF_ERROR(send(fixture));
    if (bootstrap.rank() == 1) WEFT_RETURN_IF_ERROR(receive(fixture));
    return BootstrapBarrier(bootstrap);  // No rank leaves while others use its messages.
  });
}

TEST(Messages, ArriveWhicheverEndComesFirst) {
  for (const int ranks : {1, 2, 3, 4}) {
    RunRanksOnEveryNodeMap(ranks, [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, SmallFixture(bootstrap));
      return SweepMessages(fixture, {0, 1, 2, 511, 1024, 1025, 20'011});
    });
  }
}

TEST(Messages, ArriveWithDefaultOptions) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    return SweepMessages(fixture, {300'017});
  });
}

TEST(Messages, ArriveInEverySchedule) {
  for (uint64_t seed = 0; seed < ScheduleCount(40); ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 3);
    const NodeMap nodes = NodeMap::RanksPerNode(ranks, 1 + static_cast<int>(seed % 4));
    SimOptions machine;
    machine.seed = seed;
    const SimReport report = RunSimulatedRanks(nodes, machine, [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, SmallFixture(bootstrap));
      return SweepMessages(fixture, {0, 1, 9001});
    });
    EXPECT_OK(report.status()) << Describe(nodes) << ", seed " << seed;
  }
}

// Receives in the reverse order of tags; more messages than a mailbox holds.
TEST(Messages, OfOneTagKeepTheirOrderAndTagsAreIndependent) {
  constexpr int kMessages = 100;
  const std::vector<int> tags = {0, -1, INT_MIN, INT_MAX, 12345};
  RunPair(
      3,
      [&](EngineFixture& fixture) -> absl::Status {
        std::deque<int> values;
        std::vector<Work> works;
        for (const int tag : tags) {
          for (int i = 0; i < kMessages; ++i) {
            values.push_back(i);
            for (const uint64_t channel : {uint64_t{1}, ~uint64_t{0}})
              works.push_back(
                  fixture.engine->Send({1, tag, channel}, &values.back(), DType::kU8, sizeof(int)));
          }
        }
        for (Work& work : works) WEFT_RETURN_IF_ERROR(work.Wait());
        return absl::OkStatus();
      },
      [&](EngineFixture& fixture) -> absl::Status {
        for (const uint64_t channel : {~uint64_t{0}, uint64_t{1}}) {
          for (auto tag = tags.rbegin(); tag != tags.rend(); ++tag) {
            for (int i = 0; i < kMessages; ++i) {
              int value = -1;
              Work work = fixture.engine->Receive({0, *tag, channel}, &value, DType::kU8, sizeof(int));
              WEFT_RETURN_IF_ERROR(work.Wait());
              EXPECT_EQ(value, i);
            }
          }
        }
        return absl::OkStatus();
      });
}

TEST(Messages, AreCountedAndCopiedAsDocumented) {
  constexpr int64_t kBytes = 10'000;
  for (const bool from_node : {false, true}) {
    for (const bool to_node : {false, true}) {
      RunPair(
          2,
          [&](EngineFixture& fixture) -> absl::Status {
            WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                                  TestBuffer::Make(*fixture.pool, from_node, DType::kU8, kBytes));
            FillMessage(0, 1, 5, buffer.data(), kBytes);
            Work work = fixture.engine->Send({1, 5}, buffer.data(), DType::kU8, kBytes);
            WEFT_RETURN_IF_ERROR(work.WaitReleased());
            const bool on_node = fixture.engine->bootstrap().node_map().SameNode(0, 1);
            EXPECT_EQ(fixture.engine->counters().copied_bytes,
                      on_node && !from_node && !to_node ? kBytes : 0);
            EXPECT_EQ(fixture.engine->counters().wire_bytes, on_node ? 0 : kBytes);
            EXPECT_EQ(fixture.engine->counters().point_to_point_bytes, 0);
            EXPECT_EQ(fixture.engine->counters().operations, 1);
            return absl::OkStatus();
          },
          [&](EngineFixture& fixture) -> absl::Status {
            WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                                  TestBuffer::Make(*fixture.pool, to_node, DType::kU8, kBytes));
            Work work = fixture.engine->Receive({0, 5}, buffer.data(), DType::kU8, kBytes);
            WEFT_RETURN_IF_ERROR(work.WaitReleased());
            EXPECT_EQ(fixture.engine->counters().point_to_point_bytes, kBytes);
            EXPECT_EQ(fixture.engine->counters().copied_bytes, 0);
            return CheckMessage(0, 1, 5, buffer.data(), kBytes);
          });
    }
  }
}

TEST(Messages, OfDifferentSizesFailBothEnds) {
  const auto names_both =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("rank 0 sends 8 bytes"), HasSubstr("to rank 1, which receives 12 bytes"),
                     HasSubstr("channel 3, tag 9")));
  RunPair(
      2,
      [&](EngineFixture& fixture) -> absl::Status {
        int64_t value = 0;
        Work work = fixture.engine->Send({1, 9, 3}, &value, DType::kU8, 8);
        EXPECT_THAT(work.Wait(), names_both);
        return absl::OkStatus();
      },
      [&](EngineFixture& fixture) -> absl::Status {
        std::array<char, 12> data{};
        Work work = fixture.engine->Receive({kAnySource, 9, 3}, data.data(), DType::kU8, 12);
        EXPECT_THAT(work.Wait(), names_both);
        return absl::OkStatus();
      });
}

// The sizes in bytes are equal.
TEST(Messages, OfDifferentDtypesFailBothEnds) {
  struct Element {
    DType dtype;
    int64_t count;
    ElementKind kind;
    const char* name;
  };
  const Element floats{DType::kF32, 4, ElementKind::kPlain, "16 bytes of f32,"};
  const Element integers{DType::kI32, 4, ElementKind::kPlain, "16 bytes of i32,"};
  const Element complex_numbers{DType::kF32, 4, ElementKind::kComplex, "16 bytes of f32 (complex),"};
  for (const auto& elements : {std::pair{floats, integers}, std::pair{complex_numbers, floats}}) {
    const Element& sent = elements.first;
    const Element& received = elements.second;
    const auto names_both =
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr(sent.name), HasSubstr(received.name), HasSubstr("same size, dtype and")));
    const auto options_of = [](const Element& element) {
      OpOptions options;
      options.elements = element.kind;
      return options;
    };
    RunPair(
        2,
        [&](EngineFixture& fixture) -> absl::Status {
          std::array<float, 4> data{};
          Work work = fixture.engine->Send({1}, data.data(), sent.dtype, sent.count, options_of(sent));
          EXPECT_THAT(work.Wait(), names_both);
          return absl::OkStatus();
        },
        [&](EngineFixture& fixture) -> absl::Status {
          std::array<float, 4> data{};
          Work work =
              fixture.engine->Receive({0}, data.data(), received.dtype, received.count, options_of(received));
          EXPECT_THAT(work.Wait(), names_both);
          return absl::OkStatus();
        });
  }
}

TEST(Messages, OfDifferentIdentitiesFailBothEnds) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, SmallFixture(bootstrap));
    OpOptions options;
    options.identity = bootstrap.rank() == 0 ? 0xa1 : 0xb2;
    int value = 0;
    Work work = bootstrap.rank() == 0
                    ? fixture.engine->Send({1}, &value, DType::kU8, sizeof(value), options)
                    : fixture.engine->Receive({0}, &value, DType::kU8, sizeof(value), options);
    EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr("identity a1"), HasSubstr("identity b2"))));
    return BootstrapBarrier(bootstrap);
  });
}

TEST(Messages, ThatNobodyMatchesNameTheirPeerAndTagAtTheDeadlineAndGoOn) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, SmallFixture(bootstrap));
    int value = bootstrap.rank();
    Work work;
    if (bootstrap.rank() == 0) work = fixture.engine->Send({2, 40}, &value, DType::kU8, sizeof(value));
    if (bootstrap.rank() == 1) work = fixture.engine->Receive({2, 41}, &value, DType::kU8, sizeof(value));
    const absl::Duration soon = absl::Milliseconds(2);
    if (bootstrap.rank() == 0) {
      EXPECT_THAT(work.Wait(soon), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                            AllOf(HasSubstr("send of 4 bytes to rank 2 (channel 0, tag 40)"),
                                                  HasSubstr("waits for rank(s) 2 to receive it"))));
    }
    if (bootstrap.rank() == 1) {
      EXPECT_THAT(work.Wait(soon),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           AllOf(HasSubstr("receive of 4 bytes from rank 2 (channel 0, tag 41)"),
                                 HasSubstr("waits for rank(s) 2 to send it"))));
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 2) {
      Work send = fixture.engine->Send({1, 41}, &value, DType::kU8, sizeof(value));
      int other = -1;
      work = fixture.engine->Receive({kAnySource, 40}, &other, DType::kU8, sizeof(other));
      WEFT_RETURN_IF_ERROR(work.Wait());
      EXPECT_EQ(other, 0);
      return send.WaitReleased();
    }
    WEFT_RETURN_IF_ERROR(work.Wait());
    EXPECT_EQ(value, bootstrap.rank() == 1 ? 2 : 0);
    return absl::OkStatus();
  });
}

TEST(Messages, FailAtOnceIfTheirPeerHasLeft) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, SmallFixture(bootstrap));
    int value = 0;
    if (bootstrap.rank() == 0) return absl::OkStatus();
    Work work = bootstrap.rank() == 1 ? fixture.engine->Send({0, 4}, &value, DType::kU8, sizeof(value))
                                      : fixture.engine->Receive({0, 5}, &value, DType::kU8, sizeof(value));
    // Each of the two fails, or learns of the failure of the other.
    EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0 destroyed its engine")));
    return absl::OkStatus();
  });
}

TEST(Messages, FromAnyRankFailIfAllOtherRanksHaveLeft) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, SmallFixture(bootstrap));
    int value = 0;
    if (bootstrap.rank() != 1) {
      // Tells rank 1, on another node, that this rank uses messages.
      Work own = fixture.engine->Send({bootstrap.rank()}, &value, DType::kU8, sizeof(value));
      Work received = fixture.engine->Receive({bootstrap.rank()}, &value, DType::kU8, sizeof(value));
      WEFT_RETURN_IF_ERROR(own.WaitReleased());
      return received.WaitReleased();
    }
    Work work = fixture.engine->Receive({kAnySource, 5}, &value, DType::kU8, sizeof(value));
    EXPECT_THAT(work.Wait(),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("as the last of all other ranks")));
    return absl::OkStatus();
  });
}

// A rank that leaves first finishes what it has submitted.
TEST(Messages, OfARankThatLeavesAreFinished) {
  constexpr int64_t kBytes = 50'000;
  for (uint64_t seed = 0; seed < ScheduleCount(60); ++seed) {
    const NodeMap nodes = NodeMap::RanksPerNode(4, 1 + static_cast<int>(seed % 4));
    SimOptions machine;
    machine.seed = seed;
    const SimReport report = RunSimulatedRanks(nodes, machine, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, SmallFixture(bootstrap));
      const int me = bootstrap.rank();
      const int peer = me ^ 1;
      std::vector<std::byte> sent(kBytes);
      std::vector<std::byte> received(kBytes);
      FillMessage(me, peer, 1, sent.data(), kBytes);
      bootstrap.runtime().SleepFor(static_cast<int64_t>(seed * 7919 % 13) * me * 10'000);
      Work send = fixture.engine->Send({peer, 1}, sent.data(), DType::kU8, kBytes);
      Work receive = fixture.engine->Receive({peer, 1}, received.data(), DType::kU8, kBytes);
      if ((seed & 4) != 0) {  // The engine's destructor waits for the transfers.
        send.Detach({});
        receive.Detach({});
        const absl::Status status = fixture.engine->status();
        fixture.engine.reset();
        WEFT_RETURN_IF_ERROR(status);
      } else {
        WEFT_RETURN_IF_ERROR(receive.WaitReleased());
        WEFT_RETURN_IF_ERROR(send.WaitReleased());
      }
      return CheckMessage(peer, me, 1, received.data(), kBytes);
    });
    EXPECT_OK(report.status()) << Describe(nodes) << ", seed " << seed;
  }
}

TEST(Messages, FailWithTheEngineAndWorkAfterAReset) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, SmallFixture(bootstrap));
    const std::vector<std::byte> data(100'000);
    std::vector<std::vector<std::byte>> received(30, std::vector<std::byte>(data.size()));
    std::vector<Work> works;
    for (int i = 0; i < 30; ++i) {  // More than a mailbox holds, and some of them in flight.
      const int peer = (bootstrap.rank() + i) % 3;
      works.push_back(fixture.engine->Send({peer, i}, data.data(), DType::kU8, 100'000));
      if (i % 2 == 0) {
        works.push_back(fixture.engine->Receive({kAnySource, i}, received[static_cast<size_t>(i)].data(),
                                                DType::kU8, 100'000));
      }
    }
    // Others may be *ready* before rank 1 aborts.
    std::byte unsent;
    works.push_back(fixture.engine->Receive({kAnySource, 30}, &unsent, DType::kU8, 1));
    if (bootstrap.rank() == 1) fixture.engine->Abort(absl::CancelledError("enough"));
    EXPECT_THAT(works.back().Wait(), AnyOf(StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")),
                                           StatusIs(absl::StatusCode::kAborted, HasSubstr("enough"))));
    works.clear();
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
    WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));
    return SweepMessages(fixture, {1, 5000});
  });
}

TEST(Messages, HaveCallbacksAndOrderCollectives) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, SmallFixture(bootstrap));
    int value = bootstrap.rank() == 0 ? 42 : 0;
    std::atomic<int> calls{0};
    Work message = bootstrap.rank() == 0 ? fixture.engine->Send({1}, &value, DType::kU8, sizeof(value))
                                         : fixture.engine->Receive({0}, &value, DType::kU8, sizeof(value));
    message.Then([&](const absl::Status& status) {
      EXPECT_OK(status);
      calls.fetch_add(1);
    });
    // Starts once the message is *ready*.
    Work work = fixture.engine->Broadcast(fixture.lane, &value, DType::kI32, 1, /*root=*/1, {}, &message);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    EXPECT_EQ(value, 42);
    EXPECT_TRUE(message.TestReleased());
    while (calls == 0) bootstrap.runtime().Yield();
    EXPECT_EQ(calls, 1);
    return BootstrapBarrier(bootstrap);
  });
}

TEST(Messages, RefuseInvalidArguments) {
  const auto expect_refused = [](auto submit, const char* text) {
    RunRanks(NodeMap::OneNode(1), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, SmallFixture(bootstrap));
      Work work = submit(*fixture.engine);
      EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
      return absl::OkStatus();
    });
  };
  int value = 0;
  expect_refused([&](CommEngine& engine) { return engine.Send({1}, &value, DType::kU8, 4); },
                 "1 is not a rank");
  expect_refused([&](CommEngine& engine) { return engine.Send({kAnySource}, &value, DType::kU8, 4); },
                 "-1 is not a rank");
  expect_refused([&](CommEngine& engine) { return engine.Receive({-2}, &value, DType::kU8, 4); },
                 "-2 is not a rank");
  expect_refused([&](CommEngine& engine) { return engine.Receive({0}, &value, DType::kU8, -1); }, "negative");
  expect_refused([&](CommEngine& engine) { return engine.Receive({0}, nullptr, DType::kU8, 1); },
                 "the buffer of 1 elements is null");
  for (const int64_t count : {int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    expect_refused([&](CommEngine& engine) { return engine.Send({0}, &value, DType::kF32, count); },
                   "is too large");
    expect_refused([&](CommEngine& engine) { return engine.Receive({0}, nullptr, DType::kI16, count); },
                   "is too large");
  }
  OpOptions compressed;
  compressed.wire_compression = WireCompression::kLossless;
  expect_refused([&](CommEngine& engine) { return engine.Send({0}, &value, DType::kU8, 4, compressed); },
                 "compressed");
}

}  // namespace
}  // namespace weft::testing
