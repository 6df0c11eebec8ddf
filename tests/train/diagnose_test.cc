#include "weft/train/diagnose.h"

#include <utility>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::weft::testing::StatusIs;

constexpr const char* kLane = "shard/all_gather";

FlightRecord::Operation Submitted(uint64_t sequence, const std::string& description) {
  FlightRecord::Operation operation;
  operation.lane = kLane;
  operation.sequence = sequence;
  operation.label = "layers.3";
  operation.description = description;
  operation.submitted_ns = static_cast<int64_t>(sequence);
  return operation;
}

// The record of a rank that has submitted operations 1 to `last` on the lane of four ranks. The last one is
// unfinished.
FlightRecord RecordOf(int rank, uint64_t last) {
  FlightRecord record;
  record.rank = rank;
  record.ranks = 4;
  record.phase = "step 12";
  record.lanes = {{kLane, /*index=*/0, {0, 1, 2, 3}, last}};
  for (uint64_t sequence = 1; sequence <= last; ++sequence) {
    record.operations.push_back(
        Submitted(sequence, absl::StrCat("all_gather of 64 f32, sequence ", sequence)));
    record.operations.back().ended = sequence < last;
  }
  return record;
}

void SetWait(FlightRecord::Operation& operation, int rank) {
  operation.waiting_for = absl::StrCat("waits for rank(s) ", rank);
  operation.waits_for = {rank};
}

std::string DiagnosisOf(const std::vector<FlightRecord>& records) {
  const absl::StatusOr<std::string> diagnosis = Diagnose(records);
  EXPECT_OK(diagnosis.status());
  EXPECT_EQ(diagnosis->find('\n'), std::string::npos);
  return *diagnosis;
}

TEST(Diagnose, NamesTheLateRankItsPhaseAndTheOperation) {
  EXPECT_THAT(
      DiagnosisOf({RecordOf(0, 8), RecordOf(1, 8), RecordOf(2, 7), RecordOf(3, 8)}),
      AllOf(HasSubstr("rank 2 is late: all_gather of 64 f32, sequence 8 'layers.3' on lane shard/all_gather"),
            HasSubstr("submitted by ranks 0, 1, 3"), HasSubstr("rank 2 is in step 12")));
}

// Each host writes its own folder, so that a healthy rank may have no record at hand.
TEST(Diagnose, BlamesNoRankOnlyBecauseItsRecordIsNotThere) {
  EXPECT_THAT(
      DiagnosisOf({RecordOf(0, 8), RecordOf(1, 8), RecordOf(3, 8)}),
      AllOf(StartsWith("there is no record of rank 2: it was killed or stopped, or wrote it on another "
                       "host; copy the dump folders of all hosts together"),
            Not(HasSubstr("late"))));
  EXPECT_THAT(DiagnosisOf({RecordOf(0, 8), RecordOf(1, 7), RecordOf(3, 8)}),
              AllOf(StartsWith("rank 1 is late: "), HasSubstr("submitted by ranks 0, 3 and not by rank 1 ("),
                    HasSubstr("there is no record of rank 2")));
}

TEST(Diagnose, BlamesARankWithoutARecordIfThoseOfOthersNameIt) {
  std::vector<FlightRecord> records = {RecordOf(0, 8), RecordOf(1, 8)};
  records[0].operations.back().waits_for = {2, 1};
  EXPECT_THAT(DiagnosisOf(records),
              AllOf(StartsWith("rank 2 is late: "), HasSubstr("submitted by ranks 0, 1 and not by rank 2"),
                    HasSubstr("there is no record of ranks 2, 3")));
  // Rank 2 waits itself, as in a ring.
  records[0].waits_for = {2};
  records[0].silent = {3};
  EXPECT_THAT(DiagnosisOf(records), StartsWith("rank 3 is late: "));
  records[0].silent = {};
  records[0].late = {3};
  EXPECT_THAT(DiagnosisOf(records), StartsWith("rank 3 is late: "));
}

TEST(Diagnose, GivesTheFailureIfNoRecordNamesARank) {
  std::vector<FlightRecord> records = {RecordOf(0, 8)};
  records[0].failure = "the connection to rank 3 has ended";
  EXPECT_THAT(DiagnosisOf(records),
              AllOf(StartsWith("there is no record of ranks 1, 2, 3: they were killed"),
                    HasSubstr("; the failure was: the connection to rank 3 has ended")));
}

TEST(Diagnose, PrefersTheFailureOfTheRankOnWhichItHappened) {
  std::vector<FlightRecord> records = {RecordOf(0, 8), RecordOf(1, 8)};
  records[0].failure = "rank 1: the disk is full";
  records[1].failure = "the disk is full";
  EXPECT_THAT(DiagnosisOf(records), HasSubstr("; the failure was: the disk is full"));
}

// Rank 1 has given its record since. The other one that is missing is named by a wait.
TEST(Diagnose, BlamesAnAwaitedRankWithoutARecordIfTheFailureNamesOthers) {
  std::vector<FlightRecord> records = {RecordOf(0, 5), RecordOf(1, 5), RecordOf(2, 5)};
  records[0].silent = {1};
  records[2].operations.back().waits_for = {3};
  EXPECT_THAT(DiagnosisOf(records), StartsWith("rank 3 is late: "));
}

TEST(Diagnose, NamesTheRanksThatDisagree) {
  std::vector<FlightRecord> records = {RecordOf(0, 5), RecordOf(1, 5), RecordOf(2, 5), RecordOf(3, 5)};
  records[3].operations.back().description = "all_gather of 32 f32, sequence 5";
  EXPECT_THAT(DiagnosisOf(records),
              AllOf(HasSubstr("ranks 0 and 3 disagree"), HasSubstr("of 64 f32"), HasSubstr("of 32 f32")));
  records[3].operations.back().description = records[0].operations.back().description;
  records[3].operations.back().counts_hash = 7;
  EXPECT_THAT(DiagnosisOf(records), HasSubstr("with other counts per rank"));
}

TEST(Diagnose, FollowsAChainOfWaitsToTheRankThatWaitsForNobody) {
  // Ranks 0 and 1 wait for 2 on the first lane, and 2 for 3 on the second.
  const auto on_second_lane = [](FlightRecord record, uint64_t submitted) {
    record.lanes.push_back({"replicate/all_reduce", /*index=*/1, {2, 3}, submitted});
    if (submitted == 0) return record;
    record.operations.push_back(Submitted(submitted, "all_reduce of 8 f32 by sum, sequence 1"));
    record.operations.back().lane = "replicate/all_reduce";
    record.operations.back().lane_index = 1;
    record.operations.back().submitted_ns = 1000;
    return record;
  };
  EXPECT_THAT(DiagnosisOf({RecordOf(0, 8), RecordOf(1, 8), on_second_lane(RecordOf(2, 7), 1),
                           on_second_lane(RecordOf(3, 7), 0)}),
              HasSubstr("rank 3 is late"));
}

TEST(Diagnose, TellsLanesOfOneNameApart) {
  std::vector<FlightRecord> records = {RecordOf(0, 8), RecordOf(1, 8), RecordOf(2, 8), RecordOf(3, 8)};
  for (FlightRecord& record : records) record.lanes.push_back({kLane, /*index=*/1, {0, 1, 2, 3}, 0});
  records[0].lanes.back().submitted = 8;
  records[0].operations.push_back(Submitted(8, "all_gather of 32 f32, sequence 8"));
  records[0].operations.back().lane_index = 1;
  EXPECT_THAT(DiagnosisOf(records), HasSubstr("ranks 1, 2, 3 are late: all_gather of 32 f32"));
}

// The record of a rank whose engine was reset after the record `old`, and which has submitted operations 1 to
// `last` since.
FlightRecord AfterReset(FlightRecord old, uint64_t last) {
  FlightRecord record = RecordOf(old.rank, last);
  record.generation = old.generation + 1;
  for (FlightRecord::Operation& operation : record.operations) operation.generation = record.generation;
  record.operations.insert(record.operations.begin(), old.operations.begin(), old.operations.end());
  return record;
}

TEST(Diagnose, ComparesOnlyOperationsSinceTheLastReset) {
  std::vector<FlightRecord> records;
  for (const auto& [rank, last] : {std::pair(0, 50), {1, 50}, {2, 50}, {3, 49}}) {
    records.push_back(AfterReset(RecordOf(rank, static_cast<uint64_t>(last)), /*last=*/5));
  }
  SetWait(records[0].operations[49], 3);
  EXPECT_EQ(DiagnosisOf(records), "every operation was submitted by all its ranks");
  records[3] = AfterReset(RecordOf(3, 49), /*last=*/4);
  EXPECT_THAT(DiagnosisOf(records), AllOf(StartsWith("rank 3 is late: all_gather of 64 f32, sequence 5"),
                                          HasSubstr("submitted by ranks 0, 1, 2 and not by rank 3")));
}

// One rank has written its record before the reset.
TEST(Diagnose, ComparesRecordsOfTwoGenerations) {
  std::vector<FlightRecord> records;
  for (const int rank : {0, 1, 2}) records.push_back(AfterReset(RecordOf(rank, 8), /*last=*/1));
  records.push_back(RecordOf(3, 8));
  EXPECT_THAT(DiagnosisOf(records), AllOf(StartsWith("rank 3 is late: all_gather of 64 f32, sequence 1"),
                                          HasSubstr("submitted by ranks 0, 1, 2 and not by rank 3")));
}

TEST(Diagnose, SaysThatNothingIsMissing) {
  EXPECT_THAT(DiagnosisOf({RecordOf(0, 8), RecordOf(1, 8), RecordOf(2, 8), RecordOf(3, 8)}),
              HasSubstr("every operation was submitted by all its ranks"));
}

// The late rank submitted its operation after its peers had timed out.
TEST(Diagnose, NamesTheRankForWhichPeersWaitedIfItHasSubmittedSince) {
  std::vector<FlightRecord> records = {RecordOf(0, 8), RecordOf(1, 8), RecordOf(2, 8), RecordOf(3, 8)};
  records[1].failure = "deadline passed";
  SetWait(records[1].operations.back(), 2);
  // The late rank has learned of the failure while it waited for others itself.
  records[2].failure = "rank 1: deadline passed";
  SetWait(records[2].operations.back(), 0);
  records[2].operations.back().submitted_ns = 0;
  EXPECT_THAT(DiagnosisOf(records),
              AllOf(HasSubstr("a rank was late: on rank 1, all_gather of 64 f32, sequence 8"),
                    HasSubstr("waits for rank(s) 2")));
}

TEST(Diagnose, NamesTheRankOfTheFailureIfTheOperationHasEndedSince) {
  std::vector<FlightRecord> records = {RecordOf(0, 8), RecordOf(1, 8), RecordOf(2, 8), RecordOf(3, 8)};
  records[0].failure = "rank 1: deadline passed; waits for rank(s) 2";
  records[1].failure = "all_reduce 'x': deadline passed; waits for rank(s) 2";
  for (const size_t rank : {0, 1, 2}) records[rank].waits_for = {2};
  EXPECT_THAT(DiagnosisOf(records), HasSubstr("a rank was late: on rank 1, all_reduce 'x': deadline passed; "
                                              "waits for rank(s) 2; by now"));
  // The late rank went on, and waits for a rank that has ended.
  records[2].failure = "rank 1: deadline passed; waits for rank(s) 2";
  SetWait(records[2].operations.back(), 1);
  EXPECT_THAT(DiagnosisOf(records), HasSubstr("a rank was late: on rank 1, all_reduce 'x'"));
}

TEST(Diagnose, RefusesRecordsOfDifferentRuns) {
  EXPECT_THAT(Diagnose({}), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no flight recorder")));
  FlightRecord other = RecordOf(1, 1);
  other.ranks = 8;
  EXPECT_THAT(Diagnose({RecordOf(0, 1), other}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("different runs")));
  EXPECT_THAT(Diagnose({RecordOf(0, 1), RecordOf(0, 2)}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("two flight")));
}

constexpr const char* kText =
    R"({"format": 2, "rank": 1, "ranks": 2, "generation": 0, "phase": "step 3", "failure": "late",
  "silent": [1], "late": [0], "waits_for": [],
  "lanes": [{"lane": "a/b", "lane_index": 2, "ranks": [0, 1], "submitted": 4}],
  "operations": [{"lane": "a/b", "lane_index": 2, "sequence": 4, "generation": 0, "label": "x", "description": "d", "counts_hash": 5,
                  "ready_ns": 0, "submitted_ns": 12, "waiting_for": "waits for rank(s) 0", "waits_for": [0]}]})";

TEST(FlightRecord, ReadsFilesAndFolders) {
  const TempFolder folder;
  folder.Write("dumps/rank-1.json", kText);
  folder.Write("dumps/notes.txt", "not a record");
  for (const std::string& path : {folder / "dumps", folder / "dumps/rank-1.json"}) {
    const std::string paths[] = {path};
    ASSERT_OK_AND_ASSIGN(const std::vector<FlightRecord> records, ReadFlightRecords(paths));
    ASSERT_EQ(records.size(), 1U);
    EXPECT_EQ(records[0].rank, 1);
    EXPECT_EQ(records[0].lanes[0].ranks, (std::vector<int>{0, 1}));
    EXPECT_EQ(records[0].silent, std::vector<int>{1});
    EXPECT_EQ(records[0].late, std::vector<int>{0});
    EXPECT_EQ(records[0].operations[0].waiting_for, "waits for rank(s) 0");
    EXPECT_EQ(records[0].operations[0].waits_for, std::vector<int>{0});
    EXPECT_FALSE(records[0].operations[0].ended);
  }
  const std::string none[] = {folder / "none"};
  EXPECT_THAT(ReadFlightRecords(none), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  folder.Write("empty/notes.txt", "");
  const std::string empty[] = {folder / "empty"};
  EXPECT_THAT(ReadFlightRecords(empty),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no flight recorder")));
}

TEST(FlightRecord, ReadsFilesOfAnEarlierRunOnlyByName) {
  const TempFolder folder;
  const std::string file[] = {folder.Write("dumps/rank-1.json.old", kText)};
  EXPECT_OK(ReadFlightRecords(file));
  const std::string dumps[] = {folder / "dumps"};
  EXPECT_THAT(ReadFlightRecords(dumps),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("rank-<N>.json.old")));
}

TEST(FlightRecord, RefusesEveryTruncationAndEveryRemovedField) {
  const std::string text = kText;
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    EXPECT_TRUE(absl::IsDataLoss(ParseFlightRecord(text.substr(0, length), "p").status())) << length;
  }
  for (size_t at = text.find("\":"); at != std::string::npos; at = text.find("\":", at + 1)) {
    std::string changed = text;
    changed.insert(at, "_");  // The field has another name.
    EXPECT_TRUE(absl::IsDataLoss(ParseFlightRecord(changed, "p").status())) << changed;
  }
}

}  // namespace
}  // namespace weft
