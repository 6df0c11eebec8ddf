// Diagnoses of flight recorders that engines have written.
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/rank_engine.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/simulation.h"
#include "weft/mesh/world_group.h"
#include "weft/train/diagnose.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::weft::testing::RankEngine;

// An engine with two lanes of all ranks.
struct TwoLanes : RankEngine {
  LaneId first, second;
};
using Body = absl::Status (*)(Bootstrap& bootstrap, TwoLanes& rank);

absl::StatusOr<TwoLanes> MakeTwoLanes(Bootstrap& bootstrap) {
  EngineOptions options;
  options.timeout = absl::Seconds(2);
  WEFT_ASSIGN_OR_RETURN(RankEngine engine,
                        RankEngine::Make(bootstrap, options, {.segment_bytes = size_t{4} << 20}));
  TwoLanes rank{std::move(engine), {}, {}};
  for (LaneId* lane : {&rank.first, &rank.second}) {
    WEFT_ASSIGN_OR_RETURN(*lane, rank.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kAllGather));
  }
  return rank;
}

absl::Status AwaitAll(Bootstrap& bootstrap) {
  return bootstrap.AllGatherBlob("", absl::Seconds(100)).status();
}

// The flight recorders of the ranks at the end of `body`.
std::vector<FlightRecord> RecordsAfter(const NodeMap& nodes, Body body) {
  std::vector<FlightRecord> records;
  const SimReport report = RunSimulatedRanks(nodes, {}, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(TwoLanes rank, MakeTwoLanes(bootstrap));
    WEFT_RETURN_IF_ERROR(body(bootstrap, rank));
    WEFT_ASSIGN_OR_RETURN(FlightRecord record, ParseFlightRecord(rank.engine->RecorderJson(), "a recorder"));
    records.push_back(std::move(record));
    return AwaitAll(bootstrap);
  });
  EXPECT_OK(report.status());
  return records;
}

// Both lanes have an operation that the last rank has not submitted. Only the first lane is used afterwards.
absl::Status ResetWithUnfinishedOperations(Bootstrap& bootstrap, TwoLanes& rank) {
  for (int i = 0; i < 3; ++i) WEFT_RETURN_IF_ERROR(rank.engine->Barrier(rank.first).Wait());
  std::vector<Work> unfinished;
  if (bootstrap.rank() + 1 < bootstrap.size()) {
    for (const LaneId& lane : {rank.first, rank.second}) unfinished.push_back(rank.engine->Barrier(lane));
  }
  WEFT_RETURN_IF_ERROR(AwaitAll(bootstrap));
  WEFT_RETURN_IF_ERROR(rank.engine->ResetAfterError());
  return rank.engine->Barrier(rank.first).Wait();
}

TEST(EngineDiagnosis, IgnoresOperationsThatAResetHasEnded) {
  for (const NodeMap& nodes : {NodeMap::OneNode(3), NodeMap::RanksPerNode(3, 1)}) {
    const absl::StatusOr<std::string> diagnosis =
        Diagnose(RecordsAfter(nodes, ResetWithUnfinishedOperations));
    ASSERT_OK(diagnosis);
    EXPECT_EQ(*diagnosis, "every operation was submitted by all its ranks");
  }
}

TEST(EngineDiagnosis, NamesTheLateRankAfterAReset) {
  for (const NodeMap& nodes : {NodeMap::OneNode(3), NodeMap::RanksPerNode(3, 1)}) {
    const auto body = [](Bootstrap& bootstrap, TwoLanes& rank) -> absl::Status {
      WEFT_RETURN_IF_ERROR(ResetWithUnfinishedOperations(bootstrap, rank));
      if (bootstrap.rank() == 1) return AwaitAll(bootstrap);
      EXPECT_FALSE(rank.engine->Barrier(rank.second).Wait().ok());
      return AwaitAll(bootstrap);
    };
    const absl::StatusOr<std::string> diagnosis = Diagnose(RecordsAfter(nodes, body));
    ASSERT_OK(diagnosis);
    EXPECT_THAT(*diagnosis, StartsWith("rank 1 is late: barrier"));
    EXPECT_THAT(*diagnosis, HasSubstr("was submitted by ranks 0, 2 and not by rank 1"));
  }
}

// The last rank submits nothing, and its record is not there.
absl::Status MissADeadline(Bootstrap& bootstrap, TwoLanes& rank) {
  if (bootstrap.rank() + 1 == bootstrap.size()) return AwaitAll(bootstrap);
  const absl::Status missed = rank.engine->Barrier(rank.first).Wait();
  EXPECT_FALSE(missed.ok());
  rank.engine->Abort(missed);
  return AwaitAll(bootstrap);
}

TEST(EngineDiagnosis, NamesTheRankWithoutARecordThatAMissedDeadlineNames) {
  for (const NodeMap& nodes : {NodeMap::OneNode(3), NodeMap::RanksPerNode(3, 1)}) {
    std::vector<FlightRecord> records = RecordsAfter(nodes, MissADeadline);
    std::erase_if(records, [](const FlightRecord& record) { return record.rank == 2; });
    for (const FlightRecord& record : records) {
      EXPECT_THAT(record.waits_for, Not(IsEmpty())) << record.failure;
      EXPECT_EQ(record.late, nodes.node_count() == 1 ? std::vector<int>() : std::vector<int>{2})
          << record.failure;
      EXPECT_THAT(record.operations.back().waits_for, Not(IsEmpty())) << record.operations.back().waiting_for;
    }
    const absl::StatusOr<std::string> diagnosis = Diagnose(records);
    ASSERT_OK(diagnosis);
    EXPECT_THAT(*diagnosis, StartsWith("rank 2 is late: barrier"));
  }
}

}  // namespace
}  // namespace weft
