// A core that the test polls: the order in which it starts the operations of a lane and records them, and
// what it makes of a peer that it cannot reach or that does not read its mail.
#include "src/comm/engine/engine_core.h"

#include <atomic>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/functional/function_ref.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "src/comm/engine/engine_shell.h"
#include "src/comm/links/control_messages.h"
#include "src/comm/links/shared_memory_link.h"
#include "src/comm/messages/signal.h"
#include "tests/comm/links/fake_wire_link.h"
#include "tests/comm/support/core_end.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int kCoreLane = 0;

// An operation whose progress the test determines.
class ScriptedOperation final : public Operation {
 public:
  struct Script {
    std::function<void()> on_first_step;
    bool is_ready = false;
    bool is_drained = false;
    bool is_released_when_drained = false;
    std::set<int> awaited_ranks = {};
  };
  explicit ScriptedOperation(Script& script) : script_(script) {}

  absl::StatusOr<Progress> Step(OperationContext& /*context*/) override {
    if (const auto on_first_step = std::exchange(script_.on_first_step, nullptr)) on_first_step();
    return Progress::kNoProgress;
  }
  bool ready() const override { return script_.is_ready; }
  bool drained() const override { return script_.is_drained; }
  bool is_released_when_drained() const override { return script_.is_released_when_drained; }
  std::set<int> AwaitedRanks(const OperationContext& /*context*/) const override {
    return script_.awaited_ranks;
  }

 private:
  Script& script_;
};

// A core of rank 0 with one lane of all ranks, which the test polls. Each rank has a node of its own; the
// bootstrap is that of rank 0 alone.
class PolledCore {
 public:
  static absl::StatusOr<std::unique_ptr<PolledCore>> Make(Bootstrap& bootstrap, int ranks = 1) {
    auto made = std::make_unique<PolledCore>(bootstrap, ranks);
    WEFT_ASSIGN_OR_RETURN(made->heap_, NodeHeap::Create(bootstrap, {.segment_bytes = 1 << 22}));
    WEFT_ASSIGN_OR_RETURN(made->node_, MakeSharedMemoryLink(bootstrap, *made->heap_, kTestTimeout));
    made->scratch_ = std::make_unique<BufferPool>(*made->heap_, "scratch");
    made->core_ = std::make_unique<EngineCore>(EngineCore::Environment{
        0, made->nodes_, *made->node_, made->wire_, TagLayout::Of(made->wire_.max_tag(), made->nodes_),
        *made->scratch_, made->recorder_, made->trace_, made->counters_, made->options_, CreditRules{},
        /*shares_core=*/false, /*moves_take_virtual_time=*/false});
    ProcessGroup world{"world", std::vector<int>(static_cast<size_t>(ranks)), 0};
    std::iota(world.ranks.begin(), world.ranks.end(), 0);
    WEFT_RETURN_IF_ERROR(made->core_->AddLane(kCoreLane, "test", GroupPlacement(world, made->nodes_),
                                              LanePurpose::kAllGather));
    return made;
  }
  PolledCore(Bootstrap& bootstrap, int ranks)
      : nodes_(NodeMap::RanksPerNode(ranks, 1)), trace_(bootstrap.runtime()) {}

  std::shared_ptr<OperationRecord> Submit(ScriptedOperation::Script& script) {
    auto record = std::make_shared<OperationRecord>();
    record->lane = kCoreLane;
    record->lane_name = "test";
    record->descriptor.sequence = ++submitted_;
    record->operation = std::make_unique<ScriptedOperation>(script);
    core_->Submit(record);
    return record;
  }
  EngineCore& core() { return *core_; }
  std::unique_ptr<EngineShell> MakeShell(Runtime& runtime) {
    return std::make_unique<EngineShell>(runtime, *node_, trace_, /*rank=*/0, /*has_core=*/false);
  }
  // REQUIRES: no other member is called afterwards.
  std::unique_ptr<EngineCore> Take() { return std::move(core_); }
  void Poll() { core_->Poll(++now_ns_); }
  void SleepFor(int64_t ns) { now_ns_ += ns; }
  FakeWireLink& wire() { return wire_; }
  const absl::Status& status() const { return core_->status(); }
  void Receive(const Signal& signal, int from) {
    const auto kind = ControlKind::kSignal;
    std::string bytes(reinterpret_cast<const char*>(&kind), sizeof(kind));
    wire_.messages.push_back({from, bytes.append(WireBytes(signal))});
  }
  void SubmitReceiveFromAnyRank(std::byte* data = nullptr, int64_t bytes = 0) {
    auto record = std::make_shared<OperationRecord>();
    record->lane = kMessageLane;
    record->lane_name = "messages";
    record->descriptor.kind = OpKind::kReceive;
    record->descriptor.sequence = 1;
    record->message = MessageRequest{};
    record->message->data = data;
    record->message->bytes = bytes;
    core_->Submit(std::move(record));
  }
  // The ranks that this one has asked whether `rank` has left, since the last call.
  std::vector<int> TakeAsked(int rank) { return TakeQuestions()[rank]; }
  // The same by the rank that may have left.
  std::map<int, std::vector<int>> TakeQuestions() {
    std::map<int, std::vector<int>> asked;
    for (const WireLink::ControlMessage& message : std::exchange(wire_.sent_messages, {})) {
      if (message.bytes.front() != static_cast<char>(ControlKind::kSignal)) continue;
      const absl::StatusOr<Signal> signal = ParseSignal(0, std::string_view(message.bytes).substr(1));
      EXPECT_OK(signal.status());
      if (signal.ok() && signal->kind == SignalKind::kAsksWitness)
        asked[signal->leaver].push_back(message.peer);
    }
    return asked;
  }
  bool is_idle() const { return core_->is_idle(); }

  // The recorded state of each operation, in the order of submission.
  std::vector<std::string> RecordedStates() const {
    std::vector<std::string> states;
    const nlohmann::json recorded = nlohmann::json::parse(recorder_.Json());
    for (const auto& operation : recorded["operations"]) states.push_back(operation["state"]);
    return states;
  }

 private:
  const NodeMap nodes_;
  const EngineOptions options_;
  Recorder recorder_{/*rank=*/0, /*ranks=*/1, /*entries=*/16};
  TraceLog trace_;
  EngineCounters counters_;
  FakeWireLink wire_;
  std::unique_ptr<NodeHeap> heap_;
  std::unique_ptr<NodeLink> node_;
  std::unique_ptr<BufferPool> scratch_;
  std::unique_ptr<EngineCore> core_;
  uint64_t submitted_ = 0;
  int64_t now_ns_ = 0;
};

// A peer may wait for mail of operations that have ended on this rank.
TEST(EngineCore, HasUnsentMessagesWhileAMailboxIsFull) {
  CoreEnd end;
  for (int i = 0; i < 30; ++i) end.SubmitMessage(OpKind::kSend, /*peer=*/1, 100, /*in_node_memory=*/true);
  ASSERT_OK(end.core().status());
  end.core().Poll(/*now_ns=*/0);
  EXPECT_TRUE(end.core().has_unsent_control_messages());
  for (int i = 0; i < 2; ++i) end.Poll();  // Rank 1 reads its mail.
  EXPECT_FALSE(end.core().has_unsent_control_messages());
}

// Operations may be *released* before all peers have consumed them. Peers of a full ring must hear of the
// leaving, too.
TEST(EngineCore, LeavesALaneWhoseDescriptorRingIsFullOnceItHasASlot) {
  CoreEnd end;
  ScriptedOperation::Script done;
  done.is_ready = done.is_drained = done.is_released_when_drained = true;
  for (uint64_t i = 0; i < NodeLink::kSlots; ++i) end.SubmitOnNode(std::make_unique<ScriptedOperation>(done));
  end.Poll();
  ASSERT_TRUE(end.core().is_idle());
  end.Leave();
  end.Poll();
  EXPECT_FALSE(CoreEnd::HasLeftOnNode(NodeLink::kSlots + 1));
  EXPECT_FALSE(end.core().has_left_lanes());
  EXPECT_TRUE(end.core().must_be_polled());
  EXPECT_THAT(end.core().CheckHasLeft(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                                  AllOf(HasSubstr("lane node/control"),
                                                        HasSubstr("rank(s) 1 "), HasSubstr("not told"))));
  CoreEnd::ConsumeOnNode(1);
  end.Poll();
  EXPECT_TRUE(CoreEnd::HasLeftOnNode(NodeLink::kSlots + 1));
  EXPECT_OK(end.core().CheckHasLeft());
  EXPECT_FALSE(end.core().must_be_polled());
}

// A rank that fails tells its peers, and closes its connections. A peer may see both in one poll.
TEST(EngineCore, NamesTheFirstCauseIfTheLinkFailsInThePollThatBringsItsNotice) {
  CoreEnd end;
  end.SubmitAllGather(100);
  end.Poll();
  ASSERT_FALSE(end.wire().in_flight.empty());
  FailureHeader header;
  header.code = static_cast<int32_t>(absl::StatusCode::kDataLoss);
  header.origin = 2;
  end.SendOverWire(std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + "unreadable");
  end.FailTransfers(absl::InternalError("the connection was lost"));
  end.Poll();
  EXPECT_THAT(end.core().status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 2: unreadable")));
}

// The flight recorder of a rank that hangs in a step of an operation must not name its predecessor, which is
// ready, as one that still runs.
TEST(EngineCore, RecordsThatAnOperationIsReadyBeforeTheNextOfItsLaneStarts) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<PolledCore> core, PolledCore::Make(bootstrap));
    ScriptedOperation::Script first, second, third;
    std::vector<std::string> in_second, in_third;
    first.is_ready = second.is_ready = true;
    second.on_first_step = [&] { in_second = core->RecordedStates(); };
    third.on_first_step = [&] { in_third = core->RecordedStates(); };
    for (ScriptedOperation::Script* script : {&first, &second, &third}) core->Submit(*script);
    core->Poll();
    EXPECT_THAT(in_second, ElementsAre("ready", "running", "queued"));
    EXPECT_THAT(in_third, ElementsAre("ready", "ready", "running"));
    third.is_ready = true;
    for (ScriptedOperation::Script* script : {&first, &second, &third}) script->is_drained = true;
    core->Poll();
    EXPECT_TRUE(core->is_idle());
    EXPECT_THAT(core->RecordedStates(), ElementsAre("released", "released", "released"));
    return absl::OkStatus();
  });
}

// The destructors of the memory may call the engine.
TEST(EngineShell, FreesTheMemoryOfAllOperationsWhileItsCoreLives) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<PolledCore> core, PolledCore::Make(bootstrap));
    const std::unique_ptr<EngineShell> shell = core->MakeShell(bootstrap.runtime());
    std::atomic<int> freed = 0;
    ScriptedOperation::Script released, failed;
    for (ScriptedOperation::Script* script : {&released, &failed}) {
      const std::shared_ptr<OperationRecord> record = core->Submit(*script);
      core->core().KeepAlive(*record, {std::shared_ptr<void>(nullptr, [&](void* /*memory*/) {
        shell->WithCore([](EngineCore& alive) { EXPECT_FALSE(alive.status().ok()); });
        ++freed;
      })});
    }
    released.is_ready = released.is_drained = true;
    core->Poll();
    core->core().Fail(absl::DataLossError("gone"));
    EXPECT_EQ(freed, 0);
    WEFT_RETURN_IF_ERROR(shell->Start(core->Take()));
    shell->Stop();
    EXPECT_EQ(freed, 2);
    return absl::OkStatus();
  });
}

// Rank 0 waits for rank 3 of six nodes, which it cannot reach. All others are neighbors of rank 3.
constexpr int kUnreached = 3;

void WithUnreachedRank(bool may_have_closed,
                       absl::FunctionRef<void(PolledCore& core, ScriptedOperation::Script& waiting)> body) {
  RunRanks(NodeMap::OneNode(1), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<PolledCore> core, PolledCore::Make(bootstrap, 6));
    ScriptedOperation::Script waiting;
    waiting.awaited_ranks = {kUnreached};
    core->Submit(waiting);
    core->Poll();  // Starts it.
    core->wire().lost_peers.push_back({kUnreached, absl::InternalError("lost"), may_have_closed});
    core->Poll();
    body(*core, waiting);
    return absl::OkStatus();
  });
}

TEST(UnreachedRank, IsLostAtOnceIfItHasNotClosedItsLink) {
  WithUnreachedRank(false, [](PolledCore& core, auto& /*waiting*/) {
    EXPECT_THAT(core.status(), StatusIs(absl::StatusCode::kInternal, HasSubstr("lost")));
  });
}

TEST(UnreachedRank, HasLeftIfAWitnessHasHeardIt) {
  WithUnreachedRank(true, [](PolledCore& core, auto& /*waiting*/) {
    EXPECT_OK(core.status());
    EXPECT_THAT(core.TakeAsked(kUnreached), UnorderedElementsAre(1, 2, 4, 5));
    Signal answer;
    answer.kind = SignalKind::kNoMoreSends;
    answer.leaver = kUnreached;
    answer.is_unused = true;
    core.Receive(answer, /*from=*/2);
    core.Poll();
    core.Poll();
    EXPECT_THAT(core.status(),
                StatusIs(absl::StatusCode::kAborted,
                         AllOf(HasSubstr("rank 3 destroyed its engine before it submitted"),
                               HasSubstr("on lane test"), HasSubstr("see the error of that rank"))));
  });
}

TEST(UnreachedRank, IsLostIfNoWitnessHasHeardOfItsLeavingInTwoSeconds) {
  WithUnreachedRank(true, [](PolledCore& core, auto& /*waiting*/) {
    int rounds = 0;
    for (int quarter = 0; quarter < 8; ++quarter) {
      core.Poll();
      EXPECT_OK(core.status());
      if (!core.TakeAsked(kUnreached).empty()) ++rounds;
      core.SleepFor(LateRanks::kAnswerNs / 4);
    }
    EXPECT_EQ(rounds, 8);
    core.Poll();
    EXPECT_THAT(core.status(), StatusIs(absl::StatusCode::kInternal, HasSubstr("lost")));
  });
}

TEST(UnreachedRank, IsNoFailureIfNothingWaitsForIt) {
  WithUnreachedRank(true, [](PolledCore& core, auto& waiting) {
    waiting.awaited_ranks = {1};
    core.SleepFor(4 * LateRanks::kAnswerNs);
    core.Poll();
    EXPECT_OK(core.status());
  });
}

// Questions about all ranks of a large job are many. They must not keep the core's lock for long.
TEST(ReceiveFromAnyRank, AsksAboutOneRankInEachPoll) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    constexpr int kRanks = 6;
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<PolledCore> core, PolledCore::Make(bootstrap, kRanks));
    core->SubmitReceiveFromAnyRank();
    std::map<int, int> times;
    for (int poll = 0; poll < 2 * kRanks; ++poll) {
      core->Poll();
      const std::map<int, std::vector<int>> questions = core->TakeQuestions();
      EXPECT_LE(questions.size(), 1);
      for (const auto& [rank, witnesses] : questions) ++times[rank];
    }
    EXPECT_EQ(times, (std::map<int, int>{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}));
    return absl::OkStatus();
  });
}

TEST(ReceiveFromAnyRank, AsksAboutNoRankThatHasLeftOrWasAskedAboutMeanwhile) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    constexpr int kRanks = 6;
    constexpr int kHasLeft = 4;
    constexpr int kUnreachable = 2;
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<PolledCore> core, PolledCore::Make(bootstrap, kRanks));
    ScriptedOperation::Script waiting;
    waiting.awaited_ranks = {kUnreachable};
    core->Submit(waiting);
    core->SubmitReceiveFromAnyRank();
    core->Poll();
    Signal left;
    left.kind = SignalKind::kNoMoreSends;
    left.leaver = kHasLeft;
    core->Receive(left, kHasLeft);
    core->wire().lost_peers.push_back({kUnreachable, absl::InternalError("lost"), /*may_have_closed=*/true});
    std::map<int, int> times;
    for (int poll = 0; poll < 2 * kRanks; ++poll) {
      core->Poll();
      for (const auto& [rank, witnesses] : core->TakeQuestions()) ++times[rank];
    }
    EXPECT_EQ(times, (std::map<int, int>{{1, 1}, {kUnreachable, 1}, {3, 1}, {5, 1}}));
    return absl::OkStatus();
  });
}

TEST(ReceiveFromAnyRank, AsksNoMoreOnceItHasMatched) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    constexpr int kRanks = 6;
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<PolledCore> core, PolledCore::Make(bootstrap, kRanks));
    std::byte data = {};
    core->SubmitReceiveFromAnyRank(&data, 1);
    for (int poll = 0; poll < 2; ++poll) core->Poll();
    EXPECT_EQ(core->TakeQuestions().size(), 1);
    Signal announcement;  // The data does not follow.
    announcement.dtype = Descriptor{}.dtype;
    announcement.bytes = 1;
    core->Receive(announcement, /*from=*/1);
    for (int poll = 0; poll < 2 * kRanks; ++poll) core->Poll();
    EXPECT_OK(core->status());
    EXPECT_FALSE(core->is_idle());
    EXPECT_TRUE(core->TakeQuestions().empty());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
