// The engine over MPI, on the nodes of the mpirun command. Runs the same bodies as the tests over threads.
#include <atomic>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/collectives/canonical_order.h"
#include "tests/comm/collectives/collective_sweep.h"
#include "tests/comm/collectives/ranges_sweep.h"
#include "tests/comm/support/message_sweep.h"
#include "tests/support/mpi_world.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"

namespace weft::testing {
namespace {

class CommMpi : public ::testing::Test {
 protected:
  void SetUp() override { MakeEngine(SmallSliceOptions()); }
  void MakeEngine(const EngineOptions& options) {
    ASSERT_OK_AND_ASSIGN(fixture_, EngineFixture::Make(WorldBootstrap(), options, size_t{64} << 20));
  }
  static int size() { return WorldBootstrap().size(); }
  EngineFixture fixture_;
};

TEST_F(CommMpi, AllGatherBringsEveryPartToEveryRank) { EXPECT_OK(SweepAllGather(fixture_, {})); }
TEST_F(CommMpi, AllGatherSharedFillsOneBlockPerNode) { EXPECT_OK(SweepAllGatherShared(fixture_, {})); }
TEST_F(CommMpi, ReduceScatterReducesEachPartAtItsOwner) { EXPECT_OK(SweepReduceScatter(fixture_, {})); }
TEST_F(CommMpi, AllReduceGivesEveryRankTheReduction) { EXPECT_OK(SweepAllReduce(fixture_, {})); }
TEST_F(CommMpi, CollectivesTakePartsInRanges) {
  for (const WireCompression compression : {WireCompression::kNone, WireCompression::kLossless}) {
    EXPECT_OK(SweepGathersOfRanges(fixture_, compression));
    EXPECT_OK(SweepReduceScatterOfRanges(fixture_, compression));
  }
}
TEST_F(CommMpi, AllToAllExchangesUnevenAndEmptyParts) { EXPECT_OK(SweepAllToAll(fixture_, {})); }
TEST_F(CommMpi, AllToAllExchangesStridedTensorsOfAnyShape) { EXPECT_OK(SweepStridedAllToAll(fixture_, {})); }
TEST_F(CommMpi, SendReceiveShiftsAroundTheRingAndBetweenPairs) { EXPECT_OK(SweepSendReceive(fixture_, {})); }
TEST_F(CommMpi, BroadcastCopiesTheRootsBufferAndBarrierSynchronizes) {
  EXPECT_OK(SweepBroadcast(fixture_, {}));
}

TEST_F(CommMpi, MessagesArriveWhicheverEndComesFirst) {
  EXPECT_OK(SweepMessages(fixture_, {0, 1, 511, 512, 513, 1025, 30'011}));
}

// Between nodes, small ones are relayed. See Note [Relayed exchanges].
class RelayedCommMpi : public CommMpi {
 protected:
  void SetUp() override {
    EngineOptions options = SmallSliceOptions();
    options.relaying = Relaying::kAlways;
    MakeEngine(options);
  }
};

TEST_F(RelayedCommMpi, AllGatherBringsEveryPartToEveryRank) { EXPECT_OK(SweepAllGather(fixture_, {})); }
TEST_F(RelayedCommMpi, ReduceScatterReducesEachPartAtItsOwner) {
  EXPECT_OK(SweepReduceScatter(fixture_, {}));
}
TEST_F(RelayedCommMpi, AllReduceGivesEveryRankTheReduction) { EXPECT_OK(SweepAllReduce(fixture_, {})); }

// The members' blobs travel as messages, which need no lane.
GroupExchange ExchangeByMessages(CommEngine& engine, const ProcessGroup& group, uint64_t call) {
  return [&engine, group, call](std::string_view blob) -> absl::StatusOr<std::vector<std::string>> {
    const auto bytes = static_cast<int64_t>(blob.size());  // The same on all members.
    std::vector<std::string> blobs(group.ranks.size(), std::string(blob.size(), ' '));
    std::vector<Work> works;
    for (size_t member = 0; member < blobs.size(); ++member) {
      const int peer = group.ranks[member];
      works.push_back(engine.Send({peer, 0, call}, blob.data(), DType::kU8, bytes));
      works.push_back(engine.Receive({peer, 0, call}, blobs[member].data(), DType::kU8, bytes));
    }
    for (Work& work : works) WEFT_RETURN_IF_ERROR(work.WaitReleased());
    return blobs;
  };
}

TEST_F(CommMpi, LanesOfMembersOnlyAreFormedByTheirMembersAlone) {
  const int me = WorldBootstrap().rank();
  for (int other = 0; other < size(); ++other) {
    for (int first = 0; first < other; ++first) {
      if (me != first && me != other) continue;
      const ProcessGroup pair{"pair", {other, first}, me == first ? 1 : 0};
      const int number = other * size() + first;
      const auto call = static_cast<uint64_t>(number);
      ASSERT_OK_AND_ASSIGN(const LaneId lane,
                           fixture_.engine->GroupLane(pair, LanePurpose::kAllReduce, 0,
                                                      ExchangeByMessages(*fixture_.engine, pair, call)));
      ASSERT_OK_AND_ASSIGN(TestBuffer buffer, TestBuffer::Make(*fixture_.pool, true, DType::kI32, 3000));
      buffer.Write(0, std::vector<double>(3000, me + 1));
      Work work =
          fixture_.engine->AllReduce(lane, buffer.data(), buffer.data(), DType::kI32, 3000, ReduceOp::kSum);
      EXPECT_OK(work.WaitReleased());
      EXPECT_EQ(buffer.Read(0, 3000), std::vector<double>(3000, first + other + 2));
    }
  }
  EXPECT_OK(CheckEngineWorks(fixture_));
}

TEST_F(CommMpi, CallbacksAreCalledWithoutAWaitingThread) {
  std::atomic<int> calls{0};
  for (int i = 0; i < 20; ++i) {
    Work work = fixture_.engine->Barrier(fixture_.lane);
    work.Then([&](const absl::Status& status) {
      EXPECT_OK(status);
      calls.fetch_add(1);
    });
    while (calls <= i) WorldBootstrap().runtime().Yield();
    EXPECT_EQ(calls, i + 1);
  }
}

TEST_F(CommMpi, ReductionsKeepTheCanonicalOrder) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI32, DType::kI64}) {
    EXPECT_OK(CheckCanonicalOrder(fixture_, dtype, 1601));
  }
}

TEST_F(CommMpi, HybridReductionGivesTheBitsOfAReductionOverAllRanks) {
  for (const int shard_size : {1, 2, 3, 4}) {
    if (size() % shard_size != 0) continue;
    EXPECT_OK(CheckHybridReduction(fixture_, shard_size, 1003));
  }
}

// Parts of several slices of the default size.
TEST(CommMpiDefaults, ReductionsKeepTheCanonicalOrder) {
  EngineOptions options;
  options.timeout = kTestTimeout;
  ASSERT_OK_AND_ASSIGN(EngineFixture fixture,
                       EngineFixture::Make(WorldBootstrap(), options, size_t{64} << 20));
  EXPECT_OK(CheckCanonicalOrder(fixture, DType::kF32, 200'003));
}

// Parts of several slices of the default size.
TEST(CommMpiDefaults, CompressedCollectivesKeepEveryBit) {
  ASSERT_OK_AND_ASSIGN(EngineFixture fixture, EngineFixture::Make(WorldBootstrap(), {}, size_t{64} << 20));
  SweepOptions swept{.counts = {70'001}, .dtypes = {DType::kF32, DType::kBF16}};
  swept.op.wire_compression = WireCompression::kLossless;
  EXPECT_OK(SweepAllGather(fixture, swept));
  EXPECT_OK(SweepReduceScatter(fixture, swept));
  EXPECT_OK(SweepAllReduce(fixture, swept));
}

TEST_F(CommMpi, AbortReachesAllRanksAndResetMakesThemWorkAgain) {
  for (int round = 0; round < 3; ++round) {
    if (WorldBootstrap().rank() == round % size()) {
      fixture_.engine->Abort(absl::DataLossError("checkpoint unreadable"));
    } else {
      Work work = fixture_.engine->Barrier(fixture_.lane);
      EXPECT_THAT(StatusOf(work.Wait()).message(), ::testing::HasSubstr("checkpoint unreadable"));
    }
    ASSERT_OK(BootstrapBarrier(WorldBootstrap()));
    ASSERT_OK(fixture_.engine->ResetAfterError());
    ASSERT_OK(CheckEngineWorks(fixture_));
    ASSERT_OK(BootstrapBarrier(WorldBootstrap()));
  }
}

// Slices are in flight when the ranks fail. Their memory is reused at once.
TEST_F(CommMpi, NoDataFromBeforeAResetArrivesAfterIt) {
  constexpr int64_t kCount = 200'000;
  for (int round = 0; round < 5; ++round) {
    ASSERT_OK_AND_ASSIGN(TestBuffer buffer, TestBuffer::Make(*fixture_.pool, true, DType::kI32, kCount));
    {
      Work work = fixture_.engine->AllReduce(fixture_.lane, buffer.data(), buffer.data(), DType::kI32, kCount,
                                             ReduceOp::kSum);
      fixture_.engine->Abort(absl::CancelledError("enough"));
    }
    ASSERT_OK(fixture_.engine->ResetAfterError());
    ASSERT_OK(CheckEngineWorks(fixture_));
    ASSERT_OK(BootstrapBarrier(WorldBootstrap()));
  }
}

// Sets a variable of the environment on the last rank alone, and makes an engine with the defaults.
absl::Status CreateWithVariableOnLastRank(Bootstrap& world, NodeHeap& heap, const char* name,
                                          const char* value) {
  const ScopedVariable variable(name, world.rank() == world.size() - 1 ? value : nullptr);
  return CommEngine::Create(world, heap).status();
}

TEST_F(CommMpi, AnInvalidVariableOfOneRankIsAnErrorOnEveryRank) {
  Bootstrap& world = WorldBootstrap();
  const std::string other = world.rank() == size() - 1 ? "" : absl::StrCat("rank ", size() - 1, ": ");
  const auto create = [&](const char* name, const char* value) {
    return CreateWithVariableOnLastRank(world, *fixture_.heap, name, value);
  };
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  using ::testing::StartsWith;
  EXPECT_THAT(create("WEFT_SHARE_DOMAIN", "socket"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(StartsWith(absl::StrCat(other, "WEFT_SHARE_DOMAIN is 'socket'")),
                             HasSubstr("must be auto, node, numa or none"))));
  EXPECT_THAT(create("WEFT_TIMEOUT_S", "soon"), StatusIs(absl::StatusCode::kInvalidArgument,
                                                         StartsWith(absl::StrCat(other, "WEFT_TIMEOUT_S"))));
  if (size() == 1) return;
  EXPECT_THAT(create("WEFT_TIMEOUT_S", "77"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("the timeout is 10m on rank 0, but 1m17s on rank "),
                             HasSubstr("otherwise WEFT_TIMEOUT_S"))));
  EXPECT_OK(CommEngine::Create(world, *fixture_.heap).status());
}

TEST_F(CommMpi, MismatchIsAnErrorOnEveryRank) {
  ASSERT_OK_AND_ASSIGN(TestBuffer buffer, TestBuffer::Make(*fixture_.pool, true, DType::kF32, 2000));
  const int64_t count = WorldBootstrap().rank() == 0 ? 1999 : 2000;
  Work work = fixture_.engine->AllReduce(fixture_.lane, buffer.data(), buffer.data(), DType::kF32, count,
                                         ReduceOp::kSum);
  const absl::Status outcome = work.Wait();
  if (size() == 1) {
    EXPECT_OK(outcome);  // A single rank has no mismatch.
  } else {
    EXPECT_THAT(StatusOf(outcome).message(),
                ::testing::AllOf(::testing::HasSubstr("rank 0 submitted all_reduce of 1999"),
                                 ::testing::HasSubstr("all_reduce of 2000")));
  }
  ASSERT_OK(BootstrapBarrier(WorldBootstrap()));
  ASSERT_OK(fixture_.engine->ResetAfterError());
  EXPECT_OK(CheckEngineWorks(fixture_));
}

}  // namespace
}  // namespace weft::testing
