// Gather, scatter and reduce to one rank, as docs/engine.md expresses them: results, and exact bytes.
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

constexpr int kRootedRanks = 4;
constexpr int kRoot = 2;
constexpr int64_t kRootedElements = 900;
constexpr int64_t kBytes = kRootedElements * 8;

// The sum over all ranks of the bytes that they have sent to other nodes.
absl::StatusOr<int64_t> WireBytesOfAllRanks(EngineFixture& fixture) {
  const int64_t own = fixture.engine->counters().wire_bytes;
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        fixture.engine->bootstrap().AllGatherBlob(
                            {reinterpret_cast<const char*>(&own), sizeof(own)}, kTestTimeout));
  int64_t sum = 0;
  for (const std::string& blob : blobs) {
    int64_t bytes = 0;
    std::memcpy(&bytes, blob.data(), sizeof(bytes));
    sum += bytes;
  }
  return sum;
}

int RanksOffTheRootsNode(const Bootstrap& bootstrap) {
  int ranks = 0;
  for (int rank = 0; rank < kRootedRanks; ++rank) ranks += bootstrap.node_map().SameNode(rank, kRoot) ? 0 : 1;
  return ranks;
}

// `count` for the root, else 0.
std::vector<int64_t> OnlyRoot(int64_t count) {
  std::vector<int64_t> counts(kRootedRanks, 0);
  counts[kRoot] = count;
  return counts;
}

struct Rank {
  EngineFixture fixture;
  TestBuffer part;   // kRootedElements values of this rank.
  TestBuffer whole;  // Those of all ranks, at the root.
  bool is_root;

  static absl::StatusOr<Rank> Make(Bootstrap& bootstrap) {
    Rank rank;
    WEFT_ASSIGN_OR_RETURN(rank.fixture, EngineFixture::Make(bootstrap, {}, size_t{16} << 20));
    WEFT_ASSIGN_OR_RETURN(rank.part,
                          TestBuffer::Make(*rank.fixture.pool, true, DType::kI64, kRootedElements));
    WEFT_ASSIGN_OR_RETURN(
        rank.whole, TestBuffer::Make(*rank.fixture.pool, true, DType::kI64, kRootedRanks * kRootedElements));
    rank.is_root = bootstrap.rank() == kRoot;
    return rank;
  }
};

std::vector<double> ValuesOf(int rank) { return std::vector<double>(kRootedElements, 10.0 * rank + 1); }

TEST(RootedCollectives, AllToAllGathersAtTheRootAlone) {
  RunRanksOnEveryNodeMap(kRootedRanks, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(Rank rank, Rank::Make(bootstrap));
    rank.part.Write(0, ValuesOf(bootstrap.rank()));
    const std::vector<int64_t> received(kRootedRanks, rank.is_root ? kRootedElements : 0);
    Work work = rank.fixture.engine->AllToAll(rank.fixture.lane, rank.part.data(), OnlyRoot(kRootedElements),
                                              rank.whole.data(), received, DType::kI64);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    for (int from = 0; rank.is_root && from < kRootedRanks; ++from)
      EXPECT_EQ(rank.whole.Read(from * kRootedElements, kRootedElements), ValuesOf(from));
    EXPECT_EQ(rank.fixture.engine->counters().all_gather_bytes,
              rank.is_root ? (kRootedRanks - 1) * kBytes : 0);
    EXPECT_EQ(rank.fixture.engine->counters().copied_bytes, 0);
    WEFT_ASSIGN_OR_RETURN(const int64_t wire, WireBytesOfAllRanks(rank.fixture));
    EXPECT_EQ(wire, RanksOffTheRootsNode(bootstrap) * kBytes);
    return absl::OkStatus();
  });
}

TEST(RootedCollectives, AllToAllScattersFromTheRoot) {
  RunRanksOnEveryNodeMap(kRootedRanks, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(Rank rank, Rank::Make(bootstrap));
    for (int to = 0; rank.is_root && to < kRootedRanks; ++to)
      rank.whole.Write(to * kRootedElements, ValuesOf(to));
    const std::vector<int64_t> sent(kRootedRanks, rank.is_root ? kRootedElements : 0);
    Work work = rank.fixture.engine->AllToAll(rank.fixture.lane, rank.whole.data(), sent, rank.part.data(),
                                              OnlyRoot(kRootedElements), DType::kI64);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    EXPECT_EQ(rank.part.Read(0, kRootedElements), ValuesOf(bootstrap.rank()));
    EXPECT_EQ(rank.fixture.engine->counters().all_gather_bytes, rank.is_root ? 0 : kBytes);
    WEFT_ASSIGN_OR_RETURN(const int64_t wire, WireBytesOfAllRanks(rank.fixture));
    EXPECT_EQ(wire, RanksOffTheRootsNode(bootstrap) * kBytes);
    return absl::OkStatus();
  });
}

TEST(RootedCollectives, ReduceScatterReducesToTheRootInPlaceForTheBytesOfOnePart) {
  for (const NodeMap& nodes : NodeMapsOf(kRootedRanks)) {
    RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(Rank rank, Rank::Make(bootstrap));
      rank.part.Write(0, ValuesOf(bootstrap.rank()));
      Work work = rank.fixture.engine->ReduceScatter(
          rank.fixture.lane, rank.part.data(), rank.is_root ? rank.part.data() : nullptr, DType::kI64,
          kRootedElements, ReduceOp::kSum, OnlyRoot(kRootedElements));
      WEFT_RETURN_IF_ERROR(work.WaitReleased());
      const std::vector<double> sum(kRootedElements, 10.0 * (0 + 1 + 2 + 3) + 4);
      EXPECT_EQ(rank.part.Read(0, kRootedElements), rank.is_root ? sum : ValuesOf(bootstrap.rank()));
      EXPECT_EQ(rank.fixture.engine->counters().all_gather_bytes,
                rank.is_root ? (kRootedRanks - 1) * kBytes : 0);
      EXPECT_EQ(rank.fixture.engine->counters().copied_bytes, 0);
      // Each other node sends one partial sum, as its ranks form a subtree.
      WEFT_ASSIGN_OR_RETURN(const int64_t wire, WireBytesOfAllRanks(rank.fixture));
      EXPECT_EQ(wire, (nodes.node_count() - 1) * kBytes);
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace weft::testing
