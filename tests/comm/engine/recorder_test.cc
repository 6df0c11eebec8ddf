#include "src/comm/engine/recorder.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "src/comm/base/named_ranks.h"
#include "src/comm/phases/operation.h"

namespace weft {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<OperationRecord> RecordOf(uint64_t sequence, OperationState state) {
  auto record = std::make_unique<OperationRecord>();
  record->lane = 3;
  record->lane_name = "shard/all_gather";
  record->descriptor.sequence = sequence;
  record->descriptor.kind = OpKind::kAllGather;
  record->descriptor.total_count = 64;
  record->label = absl::StrCat("layers.", sequence);
  record->logical_bytes = 256;
  record->submitted_ns = 10;
  record->started_ns = 20 * static_cast<int64_t>(sequence);
  record->state = state;
  return record;
}

TEST(Recorder, WritesEveryFieldOfAnOperation) {
  Recorder recorder(/*rank=*/5, /*ranks=*/8, /*entries=*/4);
  recorder.RecordLane(3, "shard/all_gather", {1, 5});
  recorder.SetPhase("step 2");
  const auto record = RecordOf(7, OperationState::kReady);
  record->ready_ns = 30;
  recorder.Record(*record);
  const json recorded = json::parse(recorder.Json());
  EXPECT_EQ(recorded["format"], 2);
  EXPECT_EQ(recorded["rank"], 5);
  EXPECT_EQ(recorded["ranks"], 8);
  EXPECT_EQ(recorded["generation"], 0);
  EXPECT_EQ(recorded["phase"], "step 2");
  EXPECT_EQ(recorded["failure"], "");
  EXPECT_EQ(
      recorded["lanes"],
      json::array({{{"lane", "shard/all_gather"}, {"lane_index", 3}, {"ranks", {1, 5}}, {"submitted", 7}}}));
  ASSERT_EQ(recorded["operations"].size(), 1U);
  const json expected = {{"lane", "shard/all_gather"},
                         {"lane_index", 3},
                         {"sequence", 7},
                         {"generation", 0},
                         {"kind", "all_gather"},
                         {"label", "layers.7"},
                         {"dtype", "f32"},
                         {"bytes", 256},
                         {"description", "all_gather of 64 f32, sequence 7"},
                         {"counts_hash", 0},
                         {"state", "ready"},
                         {"submitted_ns", 10},
                         {"started_ns", 140},
                         {"ready_ns", 30},
                         {"released_ns", 0},
                         {"waiting_for", ""},
                         {"waits_for", json::array()}};
  EXPECT_EQ(recorded["operations"][0], expected);
}

TEST(Recorder, KeepsTheLastOperationsInOrder) {
  Recorder recorder(0, 1, /*entries=*/4);
  for (uint64_t sequence = 1; sequence <= 11; ++sequence) {
    recorder.Record(*RecordOf(sequence, OperationState::kQueued));
    const json operations = json::parse(recorder.Json())["operations"];
    ASSERT_EQ(operations.size(), std::min<uint64_t>(sequence, 4));
    for (size_t i = 0; i < operations.size(); ++i) {
      EXPECT_EQ(operations[i]["sequence"], sequence - operations.size() + 1 + i);
    }
  }
}

TEST(Recorder, KeepsRunningOperationsBesideTheLastOnes) {
  Recorder recorder(0, 1, /*entries=*/4);
  recorder.Record(*RecordOf(1, OperationState::kRunning));
  for (uint64_t sequence = 2; sequence <= 11; ++sequence) {
    recorder.Record(*RecordOf(sequence, OperationState::kReleased));
  }
  ASSERT_TRUE(recorder.OldestRunning());
  EXPECT_THAT(recorder.OldestRunning()->text, HasSubstr("sequence 1"));
  EXPECT_EQ(json::parse(recorder.Json())["operations"].size(), 4);
  recorder.Record(*RecordOf(1, OperationState::kReleased));
  for (uint64_t sequence = 12; sequence <= 20; ++sequence) {
    recorder.Record(*RecordOf(sequence, OperationState::kRunning));  // More than the recorder's entries.
  }
  EXPECT_EQ(json::parse(recorder.Json())["operations"].size(), 4);
}

TEST(Recorder, WritesOperationsInTheOrderOfTheirSubmission) {
  Recorder recorder(0, 1, /*entries=*/4);
  const auto record = [&](uint64_t sequence, OperationState state) {
    const auto operation = RecordOf(sequence, state);
    operation->submitted_ns = 10 * static_cast<int64_t>(sequence);
    recorder.Record(*operation);
  };
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) record(sequence, OperationState::kReleased);
  record(3, OperationState::kRunning);  // Keeps its entry while the ring wraps around.
  for (uint64_t sequence = 5; sequence <= 8; ++sequence) record(sequence, OperationState::kReleased);
  std::vector<uint64_t> sequences;
  const json recorded = json::parse(recorder.Json());
  for (const json& operation : recorded["operations"]) sequences.push_back(operation["sequence"]);
  EXPECT_THAT(sequences, ElementsAre(3, 6, 7, 8));
}

TEST(Recorder, UpdatesAnOperationInItsPlace) {
  Recorder recorder(0, 1, 4);
  for (uint64_t sequence = 1; sequence <= 3; ++sequence)
    recorder.Record(*RecordOf(sequence, OperationState::kQueued));
  recorder.Record(*RecordOf(2, OperationState::kRunning));
  const json operations = json::parse(recorder.Json())["operations"];
  ASSERT_EQ(operations.size(), 3U);
  EXPECT_EQ(operations[1]["state"], "running");
  EXPECT_EQ(operations[2]["state"], "queued");
}

TEST(Recorder, DistinguishesGenerations) {
  Recorder recorder(0, 1, 4);
  recorder.Record(*RecordOf(1, OperationState::kFailed));
  const auto again = RecordOf(1, OperationState::kRunning);
  again->descriptor.generation = 1;
  recorder.Record(*again);
  const json operations = json::parse(recorder.Json())["operations"];
  ASSERT_EQ(operations.size(), 2U);
  EXPECT_EQ(operations[0]["state"], "failed");
  EXPECT_EQ(operations[1]["state"], "running");
}

TEST(Recorder, ListsTheRanksThatItsTextsName) {
  Recorder recorder(0, 8, 4);
  recorder.Record(*RecordOf(1, OperationState::kRunning));
  recorder.RecordWait(*RecordOf(1, OperationState::kRunning), DescribeAwaited({6, 7}));
  recorder.RecordFailure(absl::DeadlineExceededError(
      absl::StrCat("deadline passed; ", DescribeMissing({3}, {4, 5}), DescribeAwaited({6}))));
  const json recorded = json::parse(recorder.Json());
  EXPECT_EQ(recorded["silent"], json({3}));
  EXPECT_EQ(recorded["late"], json({4, 5}));
  EXPECT_EQ(recorded["waits_for"], json({6}));
  EXPECT_EQ(recorded["operations"][0]["waits_for"], json({6, 7}));
}

TEST(Recorder, CountsTheOperationsOfEveryLaneFromAReset) {
  Recorder recorder(0, 1, 4);
  recorder.RecordLane(3, "shard/all_gather", {0});
  recorder.Record(*RecordOf(7, OperationState::kRunning));
  recorder.RecordFailure(absl::AbortedError("the engine is being reset"));
  recorder.RecordReset(/*generation=*/2);
  recorder.Record(*RecordOf(7, OperationState::kFailed));
  recorder.Record(*RecordOf(8, OperationState::kFailed));  // Of the generation before the reset.
  json recorded = json::parse(recorder.Json());
  EXPECT_EQ(recorded["generation"], 2);
  EXPECT_EQ(recorded["failure"], "");
  EXPECT_EQ(recorded["lanes"][0]["submitted"], 0);
  const auto next = RecordOf(1, OperationState::kRunning);
  next->descriptor.generation = 2;
  recorder.Record(*next);
  recorded = json::parse(recorder.Json());
  EXPECT_EQ(recorded["lanes"][0]["submitted"], 1);
}

TEST(Recorder, SaysWhatTheOldestRunningOperationWaitsFor) {
  Recorder recorder(0, 1, 4);
  EXPECT_FALSE(recorder.OldestRunning());
  recorder.Record(*RecordOf(3, OperationState::kQueued));
  recorder.Record(*RecordOf(2, OperationState::kRunning));
  recorder.Record(*RecordOf(1, OperationState::kReady));
  recorder.RecordWait(*RecordOf(2, OperationState::kRunning), "waits for rank(s) 9");
  const auto stuck = recorder.OldestRunning();
  ASSERT_TRUE(stuck);
  EXPECT_EQ(stuck->started_ns, 40);
  EXPECT_THAT(stuck->text, HasSubstr("lane shard/all_gather: all_gather of 64 f32, sequence 2"));
  EXPECT_THAT(stuck->text, HasSubstr("waits for rank(s) 9"));
  recorder.Record(*RecordOf(2, OperationState::kReady));
  EXPECT_FALSE(recorder.OldestRunning());
  EXPECT_EQ(json::parse(recorder.Json())["operations"][1]["waiting_for"], "");
}

}  // namespace
}  // namespace weft
