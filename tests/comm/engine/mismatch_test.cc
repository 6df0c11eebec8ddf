// If ranks submit different operations, every rank gets an error that names both, and none hangs.
#include <functional>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "weft/memory/shared_block.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMembers = 3;
constexpr int64_t kElements = 4096;  // Elements of each buffer.

struct Submission {
  std::function<Work(EngineFixture&, TestBuffer& input, TestBuffer& output)> submit;
  std::string text;  // Text of the operation in error messages.
};

Submission AllReduceOf(int64_t count, DType dtype = DType::kF32, ReduceOp op = ReduceOp::kSum,
                       uint64_t identity = 0, float scale = 1.0F,
                       ElementKind elements = ElementKind::kPlain) {
  return {[=](EngineFixture& fixture, TestBuffer& input, TestBuffer& output) {
            OpOptions options;
            options.identity = identity;
            options.scale = scale;
            options.elements = elements;
            return fixture.engine->AllReduce(fixture.lane, input.data(), output.data(), dtype, count, op,
                                             options);
          },
          absl::StrCat("all_reduce of ", count, " ", ToAbsl(Name(dtype)),
                       elements == ElementKind::kPlain ? "" : " (complex)", " by ", ToAbsl(Name(op)),
                       scale == 1.0F ? "" : absl::StrCat(" times ", scale))};
}

Submission ReduceScatterOf(std::vector<int64_t> counts) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return {[=](EngineFixture& fixture, TestBuffer& input, TestBuffer& output) {
            return fixture.engine->ReduceScatter(fixture.lane, input.data(), output.data(), DType::kF32,
                                                 total, ReduceOp::kSum, counts);
          },
          absl::StrCat("reduce_scatter of ", total, " f32")};
}

Submission AllGatherOf(std::vector<int64_t> counts) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return {[=](EngineFixture& fixture, TestBuffer& input, TestBuffer& output) {
            return fixture.engine->AllGather(fixture.lane, input.data(), output.data(), DType::kF32, total,
                                             counts);
          },
          absl::StrCat("all_gather of ", total, " f32")};
}

// Parts in ranges of a whole buffer.
Submission ReduceScatterOfRanges(const std::vector<std::vector<ElementRange>>& ranges) {
  const auto parts = PartRanges::Make(ranges).value();
  return {[=](EngineFixture& fixture, TestBuffer& input, TestBuffer& output) {
            return fixture.engine->ReduceScatter(fixture.lane, input.data(), output.data(), DType::kF32,
                                                 ReduceOp::kSum, parts);
          },
          absl::StrCat("reduce_scatter of ", parts->total(), " f32")};
}

Submission AllGatherSharedOf(int64_t total) {
  return {[=](EngineFixture& fixture, TestBuffer& input, TestBuffer& output) {
            return fixture.engine->AllGatherShared(fixture.lane, input.data(), output.data(), DType::kF32,
                                                   total);
          },
          absl::StrCat("all_gather_shared of ", total, " f32")};
}

Submission AllGatherDeltaOf(int64_t total) {
  return {[=](EngineFixture& fixture, TestBuffer& input, TestBuffer& output) {
            return fixture.engine->AllGatherDelta(fixture.lane, input.data(), output.data(), total);
          },
          absl::StrCat("all_gather_delta of ", total, " f32")};
}

Submission BroadcastFrom(int root) {
  return {[=](EngineFixture& fixture, TestBuffer& /*input*/, TestBuffer& output) {
            return fixture.engine->Broadcast(fixture.lane, output.data(), DType::kF32, 100, root);
          },
          absl::StrCat("broadcast of 100 f32 from rank ", root, " of the group")};
}

Submission ABarrier() {
  return {[](EngineFixture& fixture, TestBuffer& /*input*/, TestBuffer& /*output*/) {
            return fixture.engine->Barrier(fixture.lane);
          },
          "barrier"};
}

// Matches the error of a rank that detects the mismatch or receives a failure notice. If the notice arrives
// before the rank submits, the error is that of a failed engine.
auto Refusal(const ::testing::Matcher<const std::string&>& message) {
  return ::testing::AnyOf(StatusIs(absl::StatusCode::kFailedPrecondition, message),
                          StatusIs(absl::StatusCode::kAborted, message));
}

struct Case {
  std::string difference;
  Submission common;   // Submitted by all ranks but one.
  Submission deviant;  // Submitted by the other rank.
  // Other ranks may finish without an error, if their neighbors in the trees of a broadcast agree with them.
  bool others_may_finish = false;
};

// Runs the cases, and resets the engine after each one. `outcome` returns the error of a Work.
void RunCases(const std::vector<Case>& cases, const std::function<absl::Status(Work&)>& outcome) {
  EngineOptions options;
  options.timeout = kTestTimeout;
  options.slice_bytes = 512;
  RunRanksOnEveryNodeMap(kMembers, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
    WEFT_ASSIGN_OR_RETURN(TestBuffer input, TestBuffer::Make(*fixture.pool, true, DType::kI64, kElements));
    WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, true, DType::kI64, kElements));
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      const int deviant = static_cast<int>(i) % kMembers;
      SCOPED_TRACE(absl::StrCat(c.difference, ", rank ", deviant, " differs"));
      {
        Work work = (bootstrap.rank() == deviant ? c.deviant : c.common).submit(fixture, input, output);
        const absl::Status status = outcome(work);
        if (!c.others_may_finish || !status.ok() || bootstrap.rank() == deviant) {
          EXPECT_THAT(status, Refusal(AllOf(HasSubstr(absl::StrCat("rank ", deviant, " submitted ")),
                                            HasSubstr(c.common.text), HasSubstr(c.deviant.text))));
        }
      }
      // A reset fails the operations of ranks that still wait.
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      WEFT_RETURN_IF_ERROR(Annotate(fixture.engine->ResetAfterError(), c.difference));
      WEFT_RETURN_IF_ERROR(Annotate(CheckEngineWorks(fixture), c.difference));
      // The error of the next case must not reach a rank that still checks the engine.
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    }
    return absl::OkStatus();
  });
}

TEST(Mismatch, OfAnyPropertyIsAnErrorThatNamesBothRanksAndOperations) {
  RunCases(
      {
          {"kind", AllReduceOf(100), ReduceScatterOf({30, 30, 40})},
          {"kind", AllGatherOf({10, 10, 10}), ABarrier()},
          {"kind", AllGatherOf({30, 30, 30}), AllGatherSharedOf(90)},
          {"kind", AllGatherOf({30, 30, 30}), AllGatherDeltaOf(90)},
          {"count", AllReduceOf(1000), AllReduceOf(1001)},
          {"count", ReduceScatterOf({600, 600, 600}), ReduceScatterOf({601, 601, 601})},
          {"count", AllGatherOf({600, 600, 600}), AllGatherOf({601, 601, 601})},
          {"counts", ReduceScatterOf({600, 600, 600}), ReduceScatterOf({500, 700, 600})},
          {"counts", AllGatherOf({600, 600, 600}), AllGatherOf({500, 700, 600})},
          {"ranges", ReduceScatterOfRanges({{{0, 600}}, {{600, 600}}, {{1200, 600}}}),
           ReduceScatterOfRanges({{{0, 600}}, {{1200, 600}}, {{600, 600}}})},
          {"ranges instead of counts", ReduceScatterOf({600, 600, 600}),
           ReduceScatterOfRanges({{{0, 600}}, {{1200, 600}}, {{600, 600}}})},
          {"dtype", AllReduceOf(1000), AllReduceOf(1000, DType::kI32)},
          {"dtype", AllReduceOf(1000), AllReduceOf(1000, DType::kBF16)},
          {"kind of elements", AllReduceOf(1000),
           AllReduceOf(1000, DType::kF32, ReduceOp::kSum, 0, 1.0F, ElementKind::kComplex)},
          {"reduce op", AllReduceOf(1000), AllReduceOf(1000, DType::kF32, ReduceOp::kMax)},
          {"scale", AllReduceOf(1000), AllReduceOf(1000, DType::kF32, ReduceOp::kSum, 0, 0.5F)},
          {"identity", AllReduceOf(1000, DType::kF32, ReduceOp::kSum, 7),
           AllReduceOf(1000, DType::kF32, ReduceOp::kSum, 8)},
      },
      [](Work& work) { return work.Wait(); });
}

// A rank whose part is empty, or that expects empty parts, may be *ready* before it detects the mismatch. It
// detects it before *released*.
TEST(Mismatch, OfEmptyPartsIsFoundBeforeTheyAreReleased) {
  RunCases(
      {
          {"empty except on one rank", AllReduceOf(0), AllReduceOf(1000)},
          {"empty on one rank only", AllReduceOf(1000), AllReduceOf(0)},
          {"owner of the only part", ReduceScatterOf({0, 0, 90}), ReduceScatterOf({90, 0, 0})},
          {"owner of the only part", ReduceScatterOf({90, 0, 0}), ReduceScatterOf({0, 0, 90})},
          {"owner of the only part", AllGatherOf({90, 0, 0}), AllGatherOf({0, 0, 90})},
          {"owner of the only part", AllGatherOf({0, 0, 90}), AllGatherOf({90, 0, 0})},
          {"kind, which the root of a broadcast does not await", BroadcastFrom(1), AllGatherOf({30, 30, 40}),
           /*others_may_finish=*/true},
          {"root", BroadcastFrom(0), BroadcastFrom(2), /*others_may_finish=*/true},
          {"root", BroadcastFrom(2), BroadcastFrom(0), /*others_may_finish=*/true},
      },
      [](Work& work) {
        WEFT_RETURN_IF_ERROR(work.Wait());
        return work.WaitReleased();
      });
}

// Each rank passes an output of its own.
TEST(Mismatch, OfASharedOutputIsAnError) {
  EngineOptions options;
  options.timeout = kTestTimeout;
  RunRanks(NodeMap::RanksPerNode(3, 2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
    WEFT_ASSIGN_OR_RETURN(TestBuffer input, TestBuffer::Make(*fixture.pool, true, DType::kI64, kElements));
    WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, true, DType::kI64, kElements));
    Work empty = AllGatherSharedOf(0).submit(fixture, input, output);
    WEFT_RETURN_IF_ERROR(empty.WaitReleased());
    // The empty gather ends on all ranks before the error.
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    Work work = AllGatherSharedOf(90).submit(fixture, input, output);
    EXPECT_THAT(work.Wait(),
                Refusal(AllOf(HasSubstr("all_gather_shared of 90 f32"),
                              HasSubstr("shared outputs at different addresses in node memory"))));
    return BootstrapBarrier(bootstrap);
  });
}

TEST(Mismatch, OfAnOutputThatSeveralShareDomainsShareIsAnError) {
  NodeMap nodes = NodeMap::OneNode(4);
  nodes.numa_of_rank = {0, 0, 1, 1};
  RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    const std::vector<int>& ranks = fixture.engine->group(fixture.lane).ranks;
    WEFT_ASSIGN_OR_RETURN(const auto blocks,
                          ShareBlocks(bootstrap, *fixture.heap, {{ranks, 4096}}, kTestTimeout));
    TestBuffer block = TestBuffer::Of(blocks[0].data(), DType::kF32);
    // In place.
    Work work = fixture.engine->AllGatherShared(fixture.lane, block.At(24 * bootstrap.rank()), block.data(),
                                                DType::kF32, 96);
    EXPECT_THAT(work.Wait(), Refusal(HasSubstr("of another share domain gathers into the same block")));
    return BootstrapBarrier(bootstrap);
  });
}

// Each rank gives the engine options of its own.
std::vector<absl::Status> CreateWith(const std::vector<EngineOptions>& options, NodeMap nodes) {
  std::vector<absl::Status> created(options.size());
  RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
    const auto rank = static_cast<size_t>(bootstrap.rank());
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = 1 << 24}));
    created[rank] = CommEngine::Create(bootstrap, *heap, options[rank]).status();
    return absl::OkStatus();
  });
  return created;
}

TEST(Mismatch, OfEngineOptionsIsAnErrorThatNamesBothValues) {
  NodeMap nodes = NodeMap::OneNode(3);
  nodes.numa_of_rank = {0, 1, 1};
  std::vector<EngineOptions> options(3);
  for (EngineOptions& of_rank : options) of_rank.timeout = absl::Seconds(600);
  const auto expect = [&](const char* message) {
    for (const absl::Status& status : CreateWith(options, nodes))
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  options[2].timeout = absl::Seconds(601);
  expect(
      "the timeout is 10m on rank 0, but 10m1s on rank 2: set the timeout of init_process_group under "
      "PyTorch, otherwise WEFT_TIMEOUT_S or EngineOptions::timeout, alike on all ranks");
  options[2].timeout = absl::Seconds(600);
  options[1].share_domain = ShareDomain::kNone;
  expect("the share domain is numa on rank 0, but none on rank 1: set WEFT_SHARE_DOMAIN");
  options[1].share_domain = ShareDomain::kNuma;  // Which the others choose by themselves.
  options[1].slice_bytes = 512;
  expect("but 512 on rank 1: set EngineOptions::slice_bytes");
  options[1].slice_bytes = options[0].slice_bytes;
  options[1].relaying = Relaying::kNever;
  expect("relaying is where it pays on rank 0, but never on rank 1: set EngineOptions::relaying");
}

TEST(Mismatch, AnInvalidEngineOptionOfOneRankEndsAllAtOnce) {
  std::vector<EngineOptions> options(2);
  options[1].piece_bytes = 0;
  options[1].timeout = options[0].timeout = absl::Hours(100);
  const std::vector<absl::Status> created = CreateWith(options, NodeMap::RanksPerNode(2, 1));
  EXPECT_THAT(created[0], StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("rank 1: engine option piece_bytes is 0")));
  EXPECT_THAT(created[1], StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("piece_bytes is 0")));
}

TEST(Mismatch, OfTheOrderOnALaneIsAnError) {
  EngineOptions options;
  options.timeout = kTestTimeout;
  RunRanksOnEveryNodeMap(kMembers, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
    WEFT_ASSIGN_OR_RETURN(TestBuffer input, TestBuffer::Make(*fixture.pool, true, DType::kI64, kElements));
    WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, true, DType::kI64, kElements));
    const Submission a = AllReduceOf(64);
    const Submission b = AllGatherOf({64, 64, 64});
    const bool swapped = bootstrap.rank() == 1;
    Work first = (swapped ? b : a).submit(fixture, input, output);
    Work second = (swapped ? a : b).submit(fixture, input, output);
    EXPECT_THAT(first.Wait(), Refusal(HasSubstr("in the same order")));
    EXPECT_FALSE(second.Wait().ok());
    return absl::OkStatus();
  });
}

// Elements that one rank sends, and that the other rank expects.
struct Disagreement {
  int64_t sent;
  int64_t expected;
};

// A third rank may finish without an error, as its exchanges with both ranks match.
TEST(Mismatch, OfAllToAllCountsIsAnErrorOnBothRanks) {
  EngineOptions options;
  options.timeout = kTestTimeout;
  options.slice_bytes = 512;
  RunRanksOnEveryNodeMap(kMembers, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
    WEFT_ASSIGN_OR_RETURN(TestBuffer input, TestBuffer::Make(*fixture.pool, true, DType::kF32, kElements));
    WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, true, DType::kF32, kElements));
    for (const Disagreement& d : {Disagreement{5, 4}, {300, 500}, {0, 7}, {7, 0}, {0, 1000}, {1000, 0}}) {
      for (const int to : {0, 1}) {  // The last rank sends, from the same node or from another.
        SCOPED_TRACE(absl::StrCat(d.sent, " sent, ", d.expected, " expected by rank ", to));
        std::vector<int64_t> send(kMembers, 20);
        std::vector<int64_t> receive(kMembers, 20);
        const int from = kMembers - 1;
        if (bootstrap.rank() == from) send[static_cast<size_t>(to)] = d.sent;
        if (bootstrap.rank() == to) receive[static_cast<size_t>(from)] = d.expected;
        {
          Work work =
              fixture.engine->AllToAll(fixture.lane, input.data(), send, output.data(), receive, DType::kF32);
          absl::Status status = work.Wait();
          if (status.ok()) status = work.WaitReleased();
          const auto expected =
              Refusal(AllOf(HasSubstr(absl::StrCat("rank ", from, " sends a part of shape [", d.sent, "]")),
                            HasSubstr(absl::StrCat("rank ", to, ", which expects [", d.expected, "]"))));
          // A rank that expects an empty part may finish before the sender detects the mismatch.
          const bool affected = bootstrap.rank() == from || (bootstrap.rank() == to && d.expected > 0);
          if (affected || !status.ok()) {
            EXPECT_THAT(status, expected);
          }
        }
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
        WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
        WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      }
    }
    return absl::OkStatus();
  });
}

// Shapes with equal numbers of elements also mismatch: elements would arrive at wrong positions.
TEST(Mismatch, OfTheShapesOfPartsIsAnErrorOnEveryRank) {
  EngineOptions options;
  options.timeout = kTestTimeout;
  RunRanksOnEveryNodeMap(2, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
    WEFT_ASSIGN_OR_RETURN(TestBuffer input, TestBuffer::Make(*fixture.pool, true, DType::kF32, kElements));
    WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, true, DType::kF32, kElements));
    const int peer = 1 - bootstrap.rank();
    const Shape sent = {2, 3, 4};
    const Shape expected = bootstrap.rank() == 0 ? Shape{3, 2, 4} : sent;
    Work work =
        fixture.engine->SendReceive(fixture.lane, TensorView::Contiguous(input.data(), DType::kF32, sent),
                                    peer, TensorView::Contiguous(output.data(), DType::kF32, expected), peer);
    absl::Status status = work.Wait();
    if (status.ok()) status = work.WaitReleased();
    EXPECT_THAT(status, Refusal(AllOf(HasSubstr("rank 1 sends a part of shape [2, 3, 4] to rank 0"),
                                      HasSubstr("which expects [3, 2, 4]"))));
    return BootstrapBarrier(bootstrap);
  });
}

// Ranks identify a lane by its position in the order of AddLane calls.
TEST(Mismatch, OfTheGroupsOfALaneIsAnError) {
  EngineOptions options;
  options.timeout = kTestTimeout;
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
    ProcessGroup group{"odd", {0, 1}, bootstrap.rank()};
    if (bootstrap.rank() == 1) group = {"odd", {1, 0}, 0};
    WEFT_ASSIGN_OR_RETURN(fixture.lane, fixture.engine->AddLane(group, LanePurpose::kControl));
    Work work = fixture.engine->Barrier(fixture.lane);
    EXPECT_THAT(work.Wait(), Refusal(HasSubstr("lanes of different groups")));
    return absl::OkStatus();
  });
}

// Rank 0 sends to rank 1. The others have nothing to move, and their views have no dtype.
TEST(SendReceive, WithoutPartsMatchesPeersOfEveryDtype) {
  RunRanksOnEveryNodeMap(4, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI64}) {
      WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, dtype, 100));
      const int rank = bootstrap.rank();
      buffer.Write(0, std::vector<double>(100, rank == 0 ? 5 : 0));
      const TensorView part = TensorView::Contiguous(buffer.data(), dtype, {100});
      const int next = (rank + 1) % bootstrap.size();
      const int previous = (rank + bootstrap.size() - 1) % bootstrap.size();
      Work work = fixture.engine->SendReceive(fixture.lane, rank == 0 ? part : TensorView(), next,
                                              rank == 1 ? part : TensorView(), previous);
      WEFT_RETURN_IF_ERROR(work.WaitReleased());
      EXPECT_EQ(buffer.Read(0, 100), std::vector<double>(100, rank < 2 ? 5 : 0));
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
