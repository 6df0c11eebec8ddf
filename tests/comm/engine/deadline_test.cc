// If a rank does not submit an operation, the error of the other ranks names it, and they may wait again.
#include <memory>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/abandoning_bootstrap.h"
#include "tests/support/bootstrap_of_links.h"
#include "tests/support/forwarding_link.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Waits with short deadlines until the error names only the rank `late`. Earlier errors may also name other
// ranks.
absl::Status WaitUntilOnlyOneIsMissing(Work& work, int late) {
  while (true) {
    const absl::Status status = work.Wait(absl::Milliseconds(1));
    const bool only_late =
        status.message().find(absl::StrCat("waits for rank(s) ", late)) != absl::string_view::npos;
    if (status.ok() || !absl::IsDeadlineExceeded(status) || only_late) return status;
  }
}

TEST(Deadline, NamesLaneOperationSequenceAndMissingRankAndKeepsTheOperation) {
  constexpr int kRanks = 3;
  constexpr int kLate = 2;
  for (const NodeMap& nodes : {NodeMap::OneNode(kRanks), NodeMap::RanksPerNode(kRanks, 1)}) {
    RunRanks(nodes, [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
      WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));
      WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kF32, kRanks));
      buffer.Write(bootstrap.rank(), {10.0 + bootstrap.rank()});
      const auto submit = [&] {
        OpOptions options;
        options.label = "late";
        return fixture.engine->AllGather(fixture.lane, buffer.At(bootstrap.rank()), buffer.data(),
                                         DType::kF32, kRanks, {}, options);
      };
      Work work;
      if (bootstrap.rank() != kLate) {
        work = submit();
        EXPECT_THAT(WaitUntilOnlyOneIsMissing(work, kLate),
                    StatusIs(absl::StatusCode::kDeadlineExceeded,
                             AllOf(HasSubstr("all_gather 'late' on lane world/all_gather"),
                                   HasSubstr("sequence 2"), EndsWith("waits for rank(s) 2"))));
        EXPECT_FALSE(work.Test());
      }
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      if (bootstrap.rank() == kLate) work = submit();
      WEFT_RETURN_IF_ERROR(work.Wait());
      EXPECT_EQ(buffer.Read(0, kRanks), (std::vector<double>{10, 11, 12}));
      return work.WaitReleased();
    });
  }
}

// A rank may wait for a leader on its node, while the leader waits for the late rank of another node.
TEST(Deadline, IsMissedByAllOtherRanksIfOneRankIsLate) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    const bool late = bootstrap.rank() == 3;
    Work work;
    if (!late) {
      work = fixture.engine->Barrier(fixture.lane);
      EXPECT_THAT(work.Wait(absl::ZeroDuration()),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank(s)")));
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (late) work = fixture.engine->Barrier(fixture.lane);
    return work.Wait();
  });
}

TEST(Deadline, NamesTheOperationThatBlocksTheLane) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    Work first;
    Work second;
    const auto submit = [&] {
      OpOptions options;
      options.label = "first";
      first = fixture.engine->Barrier(fixture.lane, options);
      options.label = "second";
      second = fixture.engine->Barrier(fixture.lane, options);
    };
    if (bootstrap.rank() == 0) {
      submit();
      EXPECT_THAT(second.Wait(absl::ZeroDuration()),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           AllOf(HasSubstr("'second'"), HasSubstr("behind barrier 'first'"),
                                 EndsWith("waits for rank(s) 1"))));
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 1) submit();
    return second.Wait();
  });
}

TEST(Deadline, AcceptsInfiniteDeadlines) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    EngineOptions options;
    options.timeout = absl::InfiniteDuration();
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
    Work work = fixture.engine->Barrier(fixture.lane);
    WEFT_RETURN_IF_ERROR(work.Wait(absl::InfiniteDuration()));
    Work other = fixture.engine->Barrier(fixture.lane);
    return other.Wait();
  });
}

// Its peers open a link without the rank that misses the deadline of the exchange before it.
TEST(Deadline, OfOneRankInCreateLeavesTheLinkOfTheNextEngineShared) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& base) -> absl::Status {
    AbandoningBootstrap bootstrap(base);
    WEFT_RETURN_IF_ERROR(RankEngine::Make(bootstrap).status());
    const int exchanges = bootstrap.exchanges();
    if (bootstrap.rank() == 0) {
      bootstrap.AbandonAfter(exchanges - 1);
      EXPECT_THAT(RankEngine::Make(bootstrap),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("abandoned")));
    } else {
      WEFT_RETURN_IF_ERROR(RankEngine::Make(bootstrap).status());
    }
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    return CheckEngineWorks(fixture);
  });
}

// Its waits have a deadline of a second.
absl::StatusOr<EngineFixture> MakeSimulatedFixture(Bootstrap& bootstrap) {
  EngineOptions options;
  options.timeout = absl::Seconds(1);
  return EngineFixture::Make(bootstrap, options, /*segment_bytes=*/size_t{4} << 20);
}

// The operation ends later, and only a wait with a deadline of its own tells it. Virtual time.
TEST(Deadline, ThatWasMissedIsForgottenOnceTheOperationHasEnded) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(2), SimOptions{}, [](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeSimulatedFixture(bootstrap));
        constexpr absl::Duration kLong = absl::Hours(1);
        const bool late = bootstrap.rank() == 1;
        const auto submit = [&](absl::Duration delay) {
          if (late) bootstrap.runtime().SleepFor(absl::ToInt64Nanoseconds(delay));
          return fixture.engine->Barrier(fixture.lane);
        };
        Work first = submit(absl::Seconds(10));
        if (!late) {
          EXPECT_THAT(first.Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank(s) 1")));
        }
        WEFT_RETURN_IF_ERROR(first.WaitReleased(kLong));
        Work last = submit(absl::Milliseconds(100));
        if (late) return last.Wait(kLong);
        absl::Status ended = absl::UnknownError("not called");
        last.Then([&ended](const absl::Status& status) { ended = status; });
        last.Detach({});
        fixture.engine.reset();
        return ended;
      });
  EXPECT_OK(report.status());
}

// The program gives up and destroys its engine. Virtual time.
TEST(Deadline, ThatWasMissedIsTheErrorOfAnOperationWhoseEngineIsDestroyed) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(2), SimOptions{}, [](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeSimulatedFixture(bootstrap));
        if (bootstrap.rank() == 0) {
          Work work = fixture.engine->Barrier(fixture.lane);
          EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank(s) 1")));
          absl::Status ended = absl::UnknownError("not called");
          work.Then([&ended](const absl::Status& status) { ended = status; });
          work.Detach({});
          fixture.engine.reset();
          EXPECT_THAT(ended, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      AllOf(HasSubstr("barrier on lane world/"),
                                            HasSubstr("deadline passed; waits for rank(s) 1"))));
        }
        return BootstrapBarrier(bootstrap);
      });
  EXPECT_OK(report.status());
}

// The engine is destroyed while an operation runs for which nobody has waited. Virtual time.
TEST(Deadline, OfADestructionNamesTheOperationAndTheRanksThatItWaitsFor) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(2), SimOptions{}, [](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeSimulatedFixture(bootstrap));
        if (bootstrap.rank() == 0) {
          absl::Status ended = absl::UnknownError("not called");
          int value = 0;
          Work message = fixture.engine->Receive({1, 7}, &value, DType::kI32, 1);
          Work barrier = fixture.engine->Barrier(fixture.lane);
          barrier.Then([&ended](const absl::Status& status) { ended = status; });
          barrier.Detach({});
          message.Detach({});
          fixture.engine.reset();
          EXPECT_THAT(ended, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      AllOf(HasSubstr("barrier on lane world/"),
                                            HasSubstr("wait for every Work before you destroy its engine"),
                                            EndsWith("waits for rank(s) 1"))));
        }
        return BootstrapBarrier(bootstrap);
      });
  EXPECT_OK(report.status());
}

// A link whose peer does not answer, as behind a firewall.
class UnansweredLink final : public ForwardingLink {
 public:
  using ForwardingLink::ForwardingLink;
  std::string DescribeUnanswered() const override { return "no answer yet to a connection to rank 1"; }
};

// Virtual time.
TEST(Deadline, NamesConnectionsWithoutAnAnswer) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(2, 1), SimOptions{}, [](Bootstrap& base) -> absl::Status {
        BootstrapOfLinks<UnansweredLink> bootstrap(base);
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, MakeSimulatedFixture(bootstrap));
        Work work;
        if (base.rank() == 0) {
          work = fixture.engine->Barrier(fixture.lane);
          EXPECT_THAT(work.Wait(),
                      StatusIs(absl::StatusCode::kDeadlineExceeded,
                               EndsWith("waits for rank(s) 1; no answer yet to a connection to rank 1")));
        }
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
        if (base.rank() == 1) work = fixture.engine->Barrier(fixture.lane);
        return work.WaitReleased();
      });
  EXPECT_OK(report.status());
}

}  // namespace
}  // namespace weft::testing
