// Lanes that the users of an engine share: ranks agree on the index of each.
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/abandoning_bootstrap.h"
#include "tests/support/forwarding_bootstrap.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SharedLanes, AreTheSameForTheSameGroupPurposeAndNumber) {
  RunRanksOnEveryNodeMap(4, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    std::set<int> indices = {fixture.lane.index};
    for (int round = 0; round < 50; ++round) {
      for (const LanePurpose purpose : {LanePurpose::kAllGather, LanePurpose::kControl}) {
        for (const int number : {0, 1}) {
          WEFT_ASSIGN_OR_RETURN(const LaneId lane,
                                fixture.engine->SharedLane(WorldGroup(bootstrap), purpose, number));
          EXPECT_EQ(indices.insert(lane.index).second, round == 0);
          fixture.lane = lane;
          WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));
        }
      }
    }
    return absl::OkStatus();
  });
}

// Ranks 0 and 1 are a group of both partitions. Ranks 2 and 3 are not.
TEST(SharedLanes, HaveOneIndexOnAllRanksAlsoIfPartitionsHaveAGroupInCommon) {
  RunRanksOnEveryNodeMap(4, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    const int rank = bootstrap.rank();
    const ProcessGroup low{"low", {0, 1}, rank % 2};
    const ProcessGroup pair{"pair", {2, 3}, rank % 2};
    const ProcessGroup alone{"alone", {rank}, 0};
    const auto use = [&](const ProcessGroup& group) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(fixture.lane, fixture.engine->SharedLane(group, LanePurpose::kContext));
      return CheckEngineWorks(fixture);
    };
    for (int round = 0; round < 2; ++round) {
      WEFT_RETURN_IF_ERROR(use(rank < 2 ? low : pair));
      WEFT_RETURN_IF_ERROR(use(rank < 2 ? low : alone));
      WEFT_RETURN_IF_ERROR(use(WorldGroup(bootstrap)));
    }
    return absl::OkStatus();
  });
}

// The peers of the rank that fails add further lanes. They must neither wait for it nor take its error for an
// index.
TEST(SharedLanes, EndWithTheErrorOfARankThatFailsBetweenThem) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    const auto add_lanes = [&]() -> absl::Status {
      for (const LanePurpose purpose :
           {LanePurpose::kAllGather, LanePurpose::kReduceScatter, LanePurpose::kControl}) {
        WEFT_RETURN_IF_ERROR(fixture.engine->SharedLane(WorldGroup(bootstrap), purpose).status());
        if (bootstrap.rank() == 1) return absl::ResourceExhaustedError("no memory for summaries");
      }
      return absl::OkStatus();
    };
    EXPECT_THAT(AgreeOnStatus(bootstrap, add_lanes(), kTestTimeout),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory for summaries")));
    WEFT_ASSIGN_OR_RETURN(fixture.lane,
                          fixture.engine->SharedLane(WorldGroup(bootstrap), LanePurpose::kControl));
    return CheckEngineWorks(fixture);
  });
}

// A lane that cannot be added on one rank uses up its index on all.
TEST(SharedLanes, HaveOneIndexAfterOneForWhichARankHadNoMemory) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    EngineOptions options;
    options.timeout = kTestTimeout;
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options, size_t{8} << 20));
    std::vector<std::byte*> taken;
    for (size_t bytes = size_t{8} << 20; bootstrap.rank() == 1 && bytes >= 64;) {
      const absl::StatusOr<std::byte*> block = fixture.heap->Allocate(bytes);
      if (block.ok()) {
        taken.push_back(*block);
      } else {
        bytes /= 2;
      }
    }
    EXPECT_THAT(fixture.engine->SharedLane(WorldGroup(bootstrap), LanePurpose::kContext),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("flags of lane")));
    for (std::byte* block : taken) fixture.heap->Free(block);
    WEFT_ASSIGN_OR_RETURN(fixture.lane,
                          fixture.engine->SharedLane(WorldGroup(bootstrap), LanePurpose::kContext));
    return fixture.engine->Barrier(fixture.lane).WaitReleased();
  });
}

// Rank 0 completes the round in which rank 1 misses its deadline, adds the lane, and then learns of it.
TEST(SharedLanes, HaveOneIndexAfterARankHasMissedADeadline) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& base) -> absl::Status {
    AbandoningBootstrap bootstrap(base);
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    const auto add = [&] { return fixture.engine->SharedLane(WorldGroup(bootstrap), LanePurpose::kContext); };
    if (bootstrap.rank() == 1) {
      bootstrap.AbandonAfter(0);
      EXPECT_THAT(add(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("abandoned")));
    }
    EXPECT_THAT(add(), StatusIs(absl::StatusCode::kInternal, HasSubstr("index of a shared lane")));
    WEFT_ASSIGN_OR_RETURN(fixture.lane, add());
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> indices,
                          bootstrap.AllGatherBlob(absl::StrCat(fixture.lane.index), kTestTimeout));
    EXPECT_EQ(indices[0], indices[1]);
    return indices[0] == indices[1] ? CheckEngineWorks(fixture) : absl::OkStatus();
  });
}

// A bootstrap that brings the blobs of other ranks without their last byte, like those of another version.
class ShorteningBootstrap final : public ForwardingBootstrap {
 public:
  using ForwardingBootstrap::ForwardingBootstrap;

  void Shorten() { shortens_ = true; }
  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override {
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> blobs, ForwardingBootstrap::AllGatherBlob(blob, timeout));
    for (size_t from = 0; shortens_ && from < blobs.size(); ++from) {
      if (static_cast<int>(from) != rank()) blobs[from].pop_back();
    }
    return blobs;
  }

 private:
  bool shortens_ = false;
};

TEST(SharedLanes, RefuseTheIndexOfAnotherVersion) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& base) -> absl::Status {
    ShorteningBootstrap bootstrap(base);
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    bootstrap.Shorten();
    EXPECT_THAT(fixture.engine->SharedLane(WorldGroup(bootstrap), LanePurpose::kContext),
                StatusIs(absl::StatusCode::kInternal,
                         AllOf(HasSubstr(absl::StrCat("rank ", 1 - bootstrap.rank(), " has sent the index")),
                               HasSubstr("same version"))));
    return BootstrapBarrier(base);
  });
}

TEST(SharedLanes, RefuseAGroupWithoutTheRankOnAllRanks) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    ProcessGroup group = WorldGroup(bootstrap);
    if (bootstrap.rank() == 1) group.group_rank = 2;
    EXPECT_THAT(
        fixture.engine->SharedLane(group, LanePurpose::kContext),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 is not rank 2 of group world")));
    return CheckEngineWorks(fixture);
  });
}

}  // namespace
}  // namespace weft::testing
