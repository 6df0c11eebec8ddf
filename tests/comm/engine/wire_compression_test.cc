#include "weft/comm/wire_compression.h"

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/comm/links/tag_layout.h"
#include "tests/comm/support/engine_fixture.h"
#include "tests/support/bootstrap_of_links.h"
#include "tests/support/forwarding_link.h"
#include "tests/support/status_matchers.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

// The choice of all ranks of a simulated machine. Expects that they choose the same.
WireCompressionChoice Choose(const NodeMap& nodes, const SimOptions& machine) {
  std::vector<WireCompressionChoice> choices(static_cast<size_t>(nodes.size()));
  const SimReport report = RunSimulatedRanks(nodes, machine, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine rank,
                          RankEngine::Make(bootstrap, {}, {.segment_bytes = size_t{16} << 20}));
    WEFT_ASSIGN_OR_RETURN(choices[static_cast<size_t>(bootstrap.rank())],
                          ChooseWireCompression(*rank.engine));
    return absl::OkStatus();
  });
  EXPECT_OK(report.status());
  for (const WireCompressionChoice& choice : choices) {
    EXPECT_EQ(choice.wire_compression, choices[0].wire_compression);
    EXPECT_EQ(choice.reason, choices[0].reason);
  }
  return choices[0];
}

TEST(ChooseWireCompression, CompressesIfLinksAreSlowComparedToTheCores) {
  const WireCompressionChoice choice =
      Choose(NodeMap::RanksPerNode(4, 2), {.jitter = 0, .memory_speed = 8.0, .wire_speed = 0.12});
  EXPECT_EQ(choice.wire_compression, WireCompression::kLossless);
  // Two ranks share 120 MB/s.
  EXPECT_THAT(choice.reason, HasSubstr("megabyte takes 16."));
}

TEST(ChooseWireCompression, DoesNotCompressIfLinksAreFast) {
  const SimOptions machine{.jitter = 0, .memory_speed = 2.0, .wire_speed = 12.0};
  EXPECT_EQ(Choose(NodeMap::RanksPerNode(4, 2), machine).wire_compression, WireCompression::kNone);
}

TEST(ChooseWireCompression, MakesTheSameChoiceOnUnevenNodes) {
  const SimOptions machine{.memory_speed = 8.0, .wire_speed = 0.12};
  EXPECT_EQ(Choose(NodeMap::RanksPerNode(5, 3), machine).wire_compression, WireCompression::kLossless);
}

// A transport whose tags suffice for five lanes of all ranks, if each node has one rank.
class LinkOfFewTags final : public ForwardingLink {
 public:
  using ForwardingLink::ForwardingLink;
  int max_tag() const override {
    constexpr int kLanes = 4 * 4 + 1;  // Every fourth is one of all ranks.
    constexpr int kTagsPerLane = 2;
    return TagLayout::kMessages + kTagsPerLane * kLanes - 1;
  }
};

TEST(ChooseWireCompression, MayMeasureMoreOftenThanAnEngineHasLanes) {
  constexpr int kLanes = 5;
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(2, 1), SimOptions(), [](Bootstrap& base) -> absl::Status {
        BootstrapOfLinks<LinkOfFewTags> bootstrap(base);
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
        for (int i = 0; i < kLanes + 1; ++i) {
          WEFT_RETURN_IF_ERROR(ChooseWireCompression(*fixture.engine).status());
        }
        // One is that of the fixture, and all measurements together have taken another one.
        const auto add_lane = [&] {
          return fixture.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kControl).status();
        };
        for (int lane = 2; lane < kLanes; ++lane) WEFT_RETURN_IF_ERROR(add_lane());
        EXPECT_THAT(add_lane(), StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("this engine has at most 5 lanes")));
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
}

TEST(ChooseWireCompression, MeasuresNothingOnOneNode) {
  const WireCompressionChoice choice = Choose(NodeMap::OneNode(3), {});
  EXPECT_EQ(choice.wire_compression, WireCompression::kNone);
  EXPECT_EQ(choice.reason, "all ranks are on one node");
}

constexpr int64_t kCompressedElements = 50'000;

// Fills a buffer with normally distributed numbers that differ between ranks.
void Fill(TestBuffer& buffer, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::normal_distribution<float> normal;
  std::generate_n(reinterpret_cast<float*>(buffer.data()), kCompressedElements,
                  [&] { return normal(random); });
}

// Runs an all-reduce, and an all-gather of its result.
absl::Status Reduce(EngineFixture& fixture, WireCompression wire_compression, std::vector<float>& result) {
  const int rank = fixture.engine->bootstrap().rank();
  const int ranks = fixture.engine->bootstrap().size();
  WEFT_ASSIGN_OR_RETURN(TestBuffer sum,
                        TestBuffer::Make(*fixture.pool, true, DType::kF32, kCompressedElements));
  WEFT_ASSIGN_OR_RETURN(TestBuffer all,
                        TestBuffer::Make(*fixture.pool, true, DType::kF32, kCompressedElements * ranks));
  Fill(sum, rank);
  OpOptions options;
  options.wire_compression = wire_compression;
  Work reduced = fixture.engine->AllReduce(fixture.lane, sum.data(), sum.data(), DType::kF32,
                                           kCompressedElements, ReduceOp::kSum, options);
  WEFT_RETURN_IF_ERROR(reduced.WaitReleased());
  Work gathered = fixture.engine->AllGather(fixture.lane, sum.data(), all.data(), DType::kF32,
                                            kCompressedElements * ranks, {}, options);
  WEFT_RETURN_IF_ERROR(gathered.WaitReleased());
  const auto* values = reinterpret_cast<const float*>(all.data());
  result.assign(values, values + kCompressedElements * ranks);
  return absl::OkStatus();
}

TEST(WireCompression, SavesBytesAndKeepsEveryBit) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    std::vector<float> plain;
    std::vector<float> compressed;
    WEFT_RETURN_IF_ERROR(Reduce(fixture, WireCompression::kNone, plain));
    const EngineCounters before = fixture.engine->counters();
    EXPECT_EQ(before.wire_saved_bytes, 0);
    WEFT_RETURN_IF_ERROR(Reduce(fixture, WireCompression::kLossless, compressed));
    const EngineCounters after = fixture.engine->counters();
    EXPECT_EQ(std::memcmp(plain.data(), compressed.data(), plain.size() * sizeof(float)), 0);
    const int64_t sent = after.wire_bytes - before.wire_bytes;
    EXPECT_EQ(sent + after.wire_saved_bytes, before.wire_bytes);
    EXPECT_LT(static_cast<double>(sent), 0.87 * static_cast<double>(before.wire_bytes));
    EXPECT_EQ(after.copied_bytes, 0);
    return absl::OkStatus();
  });
}

TEST(WireCompression, TracesTheBytesThatTravel) {
  RunRanks(NodeMap::RanksPerNode(2, 1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    std::vector<float> result;
    fixture.engine->StartTrace();
    WEFT_RETURN_IF_ERROR(Reduce(fixture, WireCompression::kLossless, result));
    const EngineTrace trace = fixture.engine->StopTrace();
    int64_t received = 0;
    for (const TracedSlice& slice : trace.slices) received += slice.sent ? 0 : slice.bytes;
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> received_by,
                          bootstrap.AllGatherBlob(absl::StrCat(received), kTestTimeout));
    const auto peer = static_cast<size_t>(1 - bootstrap.rank());
    EXPECT_EQ(received_by[peer], absl::StrCat(fixture.engine->counters().wire_bytes));
    return absl::OkStatus();
  });
}

// The weights of a rank's part after a number of updates.
std::vector<float> Weights(int rank, int updates) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::normal_distribution<float> normal(0, 0.02F);
  std::uniform_real_distribution<float> change(-3e-4F, 3e-4F);
  std::vector<float> weights(kCompressedElements);
  std::generate(weights.begin(), weights.end(), [&] { return normal(random); });
  for (int update = 0; update < updates; ++update) {
    for (float& weight : weights) weight += change(random);
  }
  return weights;
}

// The output of a delta all-gather, and the base of this rank's part.
struct Gathered {
  TestBuffer all, base;

  static absl::StatusOr<Gathered> Make(EngineFixture& fixture) {
    Bootstrap& bootstrap = fixture.engine->bootstrap();
    Gathered made;
    WEFT_ASSIGN_OR_RETURN(
        made.all, TestBuffer::Make(*fixture.pool, true, DType::kF32, kCompressedElements * bootstrap.size()));
    WEFT_ASSIGN_OR_RETURN(made.base,
                          TestBuffer::Make(*fixture.pool, false, DType::kF32, kCompressedElements));
    for (int rank = 0; rank < bootstrap.size(); ++rank) made.Put(rank, Weights(rank, 0));
    made.Put(made.base, 0, Weights(bootstrap.rank(), 0));
    return made;
  }
  static void Put(TestBuffer& buffer, int64_t at, const std::vector<float>& values) {
    std::memcpy(buffer.At(at), values.data(), values.size() * sizeof(float));
  }
  void Put(int rank, const std::vector<float>& values) { Put(all, rank * kCompressedElements, values); }
  absl::Status Gather(EngineFixture& fixture, WireCompression wire_compression) {
    OpOptions options;
    options.wire_compression = wire_compression;
    Work work =
        fixture.engine->AllGatherDelta(fixture.lane, base.data(), all.data(),
                                       kCompressedElements * fixture.engine->bootstrap().size(), {}, options);
    return work.WaitReleased();
  }
};

bool Holds(TestBuffer& buffer, int64_t at, const std::vector<float>& values) {
  return std::memcmp(buffer.At(at), values.data(), values.size() * sizeof(float)) == 0;
}

TEST(AllGatherDelta, BringsEveryBitAndUpdatesItsBase) {
  for (const WireCompression wire_compression : {WireCompression::kNone, WireCompression::kLossless}) {
    RunRanksOnEveryNodeMap(3, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
      WEFT_ASSIGN_OR_RETURN(Gathered gathered, Gathered::Make(fixture));
      for (int update = 1; update <= 2; ++update) {
        gathered.Put(bootstrap.rank(), Weights(bootstrap.rank(), update));
        WEFT_RETURN_IF_ERROR(gathered.Gather(fixture, wire_compression));
        for (int rank = 0; rank < bootstrap.size(); ++rank) {
          EXPECT_TRUE(Holds(gathered.all, rank * kCompressedElements, Weights(rank, update)))
              << rank << ", " << update;
        }
        EXPECT_TRUE(Holds(gathered.base, 0, Weights(bootstrap.rank(), update)));
      }
      return BootstrapBarrier(bootstrap);
    });
  }
}

TEST(AllGatherDelta, SendsTwoThirdsOfTheBytes) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(Gathered gathered, Gathered::Make(fixture));
    gathered.Put(bootstrap.rank(), Weights(bootstrap.rank(), 1));
    const EngineCounters before = fixture.engine->counters();
    WEFT_RETURN_IF_ERROR(gathered.Gather(fixture, WireCompression::kLossless));
    const EngineCounters after = fixture.engine->counters();
    // To one rank of the other node.
    const int64_t plain = kCompressedElements * static_cast<int64_t>(sizeof(float));
    const int64_t sent = after.wire_bytes - before.wire_bytes;
    EXPECT_EQ(sent + after.wire_saved_bytes, plain);
    EXPECT_LT(static_cast<double>(sent), 0.72 * static_cast<double>(plain));
    EXPECT_EQ(after.copied_bytes, 0);
    return absl::OkStatus();
  });
}

TEST(AllGatherDelta, FailsIfAnotherRankHasWrittenAPart) {
  RunRanks(NodeMap::RanksPerNode(2, 1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(Gathered gathered, Gathered::Make(fixture));
    if (bootstrap.rank() == 1) gathered.Put(0, Weights(0, 1));
    const absl::Status gather = gathered.Gather(fixture, WireCompression::kLossless);
    // The other rank may have finished before it receives the failure notice.
    if (bootstrap.rank() == 1) {
      EXPECT_THAT(gather, StatusIs(absl::StatusCode::kInternal, HasSubstr("does not match the base of")));
    }
    return BootstrapBarrier(bootstrap);
  });
}

TEST(AllGatherDelta, NeedsAnOutputInNodeMemoryIfLocalPeersReadIt) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(TestBuffer all,
                          TestBuffer::Make(*fixture.pool, false, DType::kF32, 2 * kCompressedElements));
    WEFT_ASSIGN_OR_RETURN(TestBuffer base,
                          TestBuffer::Make(*fixture.pool, false, DType::kF32, kCompressedElements));
    Work work =
        fixture.engine->AllGatherDelta(fixture.lane, base.data(), all.data(), 2 * kCompressedElements);
    EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("all_gather_delta: the output of 400000 bytes does not lie "
                                                "in node memory; take it from the node heap")));
    return BootstrapBarrier(bootstrap);
  });
}

TEST(WireCompression, OnOneRankOnlyIsAMismatch) {
  RunRanks(NodeMap::RanksPerNode(2, 1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    std::vector<float> result;
    const bool compresses = bootstrap.rank() == 1;
    EXPECT_THAT(Reduce(fixture, compresses ? WireCompression::kLossless : WireCompression::kNone, result),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("wire compression: ")));
    return BootstrapBarrier(bootstrap);
  });
}

}  // namespace
}  // namespace weft::testing
