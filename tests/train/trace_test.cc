// Traces of runs: rows of overlapping intervals, the file's events, and clocks of different hosts.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "src/train/files/json.h"
#include "src/train/trace/chrome_trace.h"
#include "src/train/trace/run_trace.h"
#include "tests/support/forwarding_bootstrap.h"
#include "tests/support/forwarding_runtime.h"
#include "tests/support/rank_engine.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "tests/train/train_run.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::weft::testing::ForwardingBootstrap;
using ::weft::testing::ForwardingRuntime;
using ::weft::testing::kTestTimeout;
using ::weft::testing::RunRanks;

TEST(AssignRows, PutsNoTwoOverlappingIntervalsOnOneRow) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Interval> intervals(random() % 30);
    for (Interval& interval : intervals) {
      interval.begin_ns = static_cast<int64_t>(random() % 100);
      interval.end_ns = interval.begin_ns + 1 + static_cast<int64_t>(random() % 20);
    }
    const std::vector<int> rows = AssignRows(intervals);
    int most = 0;  // Intervals at one time: that many rows are needed.
    for (int64_t time = 0; time < 120; ++time) {
      std::map<int, int> on_row;
      int at_once = 0;
      for (size_t i = 0; i < intervals.size(); ++i) {
        if (intervals[i].begin_ns > time || intervals[i].end_ns <= time) continue;
        EXPECT_EQ(++on_row[rows[i]], 1);
        ++at_once;
      }
      most = std::max(most, at_once);
    }
    const int count = rows.empty() ? 0 : *std::max_element(rows.begin(), rows.end()) + 1;
    EXPECT_EQ(count, most);
  }
}

TEST(TraceEvents, AreJsonWhateverTheLabels) {
  RankTrace trace;
  trace.rank = 3;
  trace.zero_ns = 1000;
  trace.spans = {{"forward", "a \"name\" \xff\n", 3000, 4500}};
  const Json events = ParseJson("[" + TraceEvents(trace) + "]");
  const Json& span = events.back();
  EXPECT_EQ(span["ph"], "X");
  EXPECT_EQ(span["pid"], 3);
  EXPECT_EQ(span["ts"], 2.0);
  EXPECT_EQ(span["dur"], 1.5);
}

Json ReadEvents(const std::string& path) { return ParseJson(ReadFile(path))["traceEvents"]; }

class TrainTrace : public TrainRun {
 protected:
  // Runs on a mesh of 2 shards, on two nodes, and returns the events.
  Json Trace(const std::string& steps) {
    config_.output.trace_file = folder_ / "trace.json";
    config_.output.trace_steps = steps;
    result_ = Run({1, 2}, NodeMap::RanksPerNode(2, 1));
    return ReadEvents(config_.output.trace_file);
  }
  // The names of the events of a rank and category.
  static std::vector<std::string> Names(const Json& events, int rank, const std::string& category) {
    std::vector<std::string> names;
    for (const Json& event : events) {
      if (event["pid"] == rank && event.value("cat", "") == category) names.push_back(event["name"]);
    }
    return names;
  }
  Result result_;
};

TEST_F(TrainTrace, HasTheStepsModulesAndOperationsOfEveryRank) {
  config_.optimizer.steps = 4;
  const Json events = Trace("2:3");
  for (const int rank : {0, 1}) {
    EXPECT_THAT(Names(events, rank, "step"), ElementsAre("step 2", "step 3"));
    for (const char* pass : {"forward", "backward"}) {
      EXPECT_THAT(Names(events, rank, pass),
                  IsSupersetOf({"model.layers.0.mlp", "model.layers.1.self_attn"}));
    }
    EXPECT_THAT(Names(events, rank, "optimizer"), IsSupersetOf({"clip", "update"}));
    EXPECT_FALSE(Names(events, rank, "product").empty());
    EXPECT_FALSE(Names(events, rank, "slice").empty());
    EXPECT_FALSE(Names(events, rank, "operation").empty());
  }
  int lanes = 0;
  for (const Json& event : events) {
    if (event["name"] == "thread_name" && event["args"]["name"] == "shard/reduce_scatter") ++lanes;
  }
  EXPECT_EQ(lanes, 2);
}

TEST_F(TrainTrace, HasWaitsThatAddUpToTheExposedTime) {
  config_.optimizer.steps = 4;
  const Json events = Trace("2:4");
  for (const StepMetrics& metrics : result_.steps) {
    if (metrics.step < 2) continue;
    const auto step = std::find_if(events.begin(), events.end(), [&](const Json& event) {
      return event["pid"] == 0 && event["name"] == absl::StrCat("step ", metrics.step);
    });
    ASSERT_NE(step, events.end());
    const double begin = (*step)["ts"];
    const double end = begin + (*step)["dur"].get<double>();
    double waited_us = 0;
    for (const Json& event : events) {
      if (event["pid"] == 0 && event.value("cat", "") == "wait" && event["ts"] >= begin && event["ts"] < end)
        waited_us += event["dur"].get<double>();
    }
    EXPECT_NEAR(waited_us / 1e3, metrics.exposed_comm_ms, 1e-3 + 0.01 * metrics.exposed_comm_ms);
  }
}

TEST_F(TrainTrace, IsReportedAsNotWrittenByARunWithoutSteps) {
  config_.output.trace_file = folder_ / "trace.json";
  config_.eval.paths = config_.data.paths;
  config_.optimizer.steps = 0;
  EXPECT_THAT(Printed({1, 1}, NodeMap::OneNode(1)), HasSubstr("trace.json is not written"));
}

TEST_F(TrainTrace, DoesNotChangeTheWeights) {
  const uint64_t hash = Run({1, 2}).report.weights_hash;
  config_.output.trace_file = folder_ / "trace.json";
  config_.output.trace_steps = "1:3";
  EXPECT_EQ(Run({1, 2}).report.weights_hash, hash);
}

TEST_F(TrainTrace, CoversTheThirdToFifthStepByDefault) {
  config_.optimizer.steps = 4;
  EXPECT_THAT(Names(Trace(""), 0, "step"), ElementsAre("step 3", "step 4"));
}

TEST_F(TrainTrace, CoversTheLastStepOfAShortRunByDefault) {
  config_.optimizer.steps = 2;
  EXPECT_THAT(Names(Trace(""), 0, "step"), ElementsAre("step 2"));
}

// Rank 1 has a clock that is ahead of rank 0's by an hour, as on another host.
class ShiftedRuntime final : public ForwardingRuntime {
 public:
  static constexpr int64_t kShiftNs = 3'600'000'000'000;
  using ForwardingRuntime::ForwardingRuntime;
  int64_t NowNs() const override { return ForwardingRuntime::NowNs() + kShiftNs; }
};

class ShiftedBootstrap final : public ForwardingBootstrap {
 public:
  explicit ShiftedBootstrap(Bootstrap& base) : ForwardingBootstrap(base), runtime_(base.runtime()) {}
  Runtime& runtime() override { return runtime_; }

 private:
  ShiftedRuntime runtime_;
};

TEST(RunTrace, AlignsTheClocksOfDifferentHosts) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  RunRanks(NodeMap::RanksPerNode(2, 1), [&](Bootstrap& bootstrap) -> absl::Status {
    ShiftedBootstrap shifted(bootstrap);
    Bootstrap& used = bootstrap.rank() == 1 ? shifted : bootstrap;
    const absl::Duration timeout = kTestTimeout;
    EngineOptions options;
    options.timeout = timeout;
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(used, {}));
    WEFT_ASSIGN_OR_RETURN(const auto engine, CommEngine::Create(used, *heap, options));
    RunTrace trace(*engine, path, {1, 1}, timeout);
    WEFT_RETURN_IF_ERROR(trace.BeforeStep(1));
    {
      const Span span("step", [] { return std::string("step 1"); });
    }
    return trace.AfterStep(1);
  });
  std::vector<double> begins_us;
  for (const Json& event : ReadEvents(path)) {
    if (event["name"] == "step 1") begins_us.push_back(event["ts"]);
  }
  ASSERT_EQ(begins_us.size(), 2);
  // Far above the time that the test takes, far below the difference of the clocks.
  EXPECT_NEAR(begins_us[0], begins_us[1], 0.5 * ShiftedRuntime::kShiftNs / 1e3);
}

TEST(StepRange, NamesWhatIsWrong) {
  EXPECT_THAT(StepRange::Parse("x:3").status().message(), HasSubstr("3:5"));
  EXPECT_THAT(StepRange::Parse("1:2:3").status().message(), HasSubstr("3:5"));
  EXPECT_THAT(StepRange::Parse("0:3").status().message(), HasSubstr("from 1"));
  EXPECT_THAT(StepRange::Parse("4:3").status().message(), HasSubstr("before the first"));
  const absl::StatusOr<StepRange> one = StepRange::Parse("7");
  ASSERT_OK(one);
  EXPECT_EQ(one->first, 7);
  EXPECT_EQ(one->last, 7);
}

}  // namespace
}  // namespace weft
