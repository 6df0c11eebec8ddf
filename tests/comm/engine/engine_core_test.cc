// Order in which the core starts the operations of a lane and records them.
#include "src/comm/engine/engine_core.h"

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "src/comm/links/shared_memory_link.h"
#include "tests/comm/links/fake_wire_link.h"
#include "tests/support/status_matchers.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;

constexpr int kLane = 0;

// An operation whose progress the test determines.
class ScriptedOperation final : public Operation {
 public:
  struct Script {
    std::function<void()> on_first_step;
    bool is_ready = false;
    bool is_drained = false;
  };
  explicit ScriptedOperation(Script& script) : script_(script) {}

  absl::StatusOr<Progress> Step(OperationContext& /*context*/) override {
    if (const auto on_first_step = std::exchange(script_.on_first_step, nullptr)) on_first_step();
    return Progress::kNoProgress;
  }
  bool ready() const override { return script_.is_ready; }
  bool drained() const override { return script_.is_drained; }
  std::set<int> AwaitedRanks(const OperationContext& /*context*/) const override { return {}; }

 private:
  Script& script_;
};

// A core with one lane of one rank, which the test polls.
class PolledCore {
 public:
  static absl::StatusOr<std::unique_ptr<PolledCore>> Make(Bootstrap& bootstrap) {
    auto made = std::make_unique<PolledCore>(bootstrap);
    WEFT_ASSIGN_OR_RETURN(made->heap_, NodeHeap::Create(bootstrap, {.segment_bytes = 1 << 22}));
    WEFT_ASSIGN_OR_RETURN(made->node_, MakeSharedMemoryLink(bootstrap, *made->heap_, absl::Seconds(60)));
    made->scratch_ = std::make_unique<BufferPool>(*made->heap_, "scratch");
    made->core_ = std::make_unique<EngineCore>(
        EngineCore::Environment{0, bootstrap.node_map(), *made->node_, made->wire_,
                                TagLayout::Of(made->wire_.max_tag(), bootstrap.node_map()), *made->scratch_,
                                made->recorder_, made->trace_, made->counters_, made->options_, CreditRules{},
                                /*shares_core=*/false, /*moves_take_virtual_time=*/false});
    WEFT_RETURN_IF_ERROR(made->core_->AddLane(
        kLane, "test", GroupPlacement({"world", {0}, 0}, bootstrap.node_map()), LanePurpose::kAllGather));
    return made;
  }
  explicit PolledCore(Bootstrap& bootstrap) : trace_(bootstrap.runtime()) {}

  void Submit(ScriptedOperation::Script& script) {
    auto record = std::make_shared<OperationRecord>();
    record->lane = kLane;
    record->lane_name = "test";
    record->descriptor.sequence = ++submitted_;
    record->operation = std::make_unique<ScriptedOperation>(script);
    core_->Submit(std::move(record));
  }
  void Poll() { core_->Poll(++now_ns_); }
  bool is_idle() const { return core_->is_idle(); }

  // The recorded state of each operation, in the order of submission.
  std::vector<std::string> RecordedStates() const {
    std::vector<std::string> states;
    const nlohmann::json recorded = nlohmann::json::parse(recorder_.Json());
    for (const auto& operation : recorded["operations"]) states.push_back(operation["state"]);
    return states;
  }

 private:
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

}  // namespace
}  // namespace weft::testing
