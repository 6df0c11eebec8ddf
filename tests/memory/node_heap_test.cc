#include "weft/memory/node_heap.h"

#include <unistd.h>

#include <cstring>
#include <linux/mempolicy.h>
#include <optional>
#include <sys/syscall.h>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/memory/heap_conformance.h"
#include "tests/support/forwarding_bootstrap.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/topology.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::RunRanks;
using ::weft::testing::RunRanksOnEveryNodeMap;
using ::weft::testing::StatusIs;

class NodeHeapOverThreads : public ::testing::TestWithParam<int> {};

TEST_P(NodeHeapOverThreads, BlocksDoNotOverlapAndAreVisibleToTheNode) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::BlocksDoNotOverlapAndAreVisibleToTheNode);
}
TEST_P(NodeHeapOverThreads, AFullHeapReturnsAnError) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::AFullHeapReturnsAnError);
}
TEST_P(NodeHeapOverThreads, RanksChooseTheSameDefaultSize) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::RanksChooseTheSameDefaultSize);
}
TEST_P(NodeHeapOverThreads, RanksUseTheSmallestRequestedSize) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::RanksUseTheSmallestRequestedSize);
}
INSTANTIATE_TEST_SUITE_P(Ranks, NodeHeapOverThreads, ::testing::Values(1, 2, 3, 4, 7));

// A rank of a node with this free memory.
class RankWithFreeMemory final : public ::weft::testing::ForwardingBootstrap {
 public:
  RankWithFreeMemory(Bootstrap& base, const FreeMemory& memory)
      : ForwardingBootstrap(base), memory_(memory) {}
  absl::StatusOr<FreeMemory> FreeNodeMemory() const override { return memory_; }

 private:
  const FreeMemory memory_;
};

// The other ranks request less than the smallest default size.
TEST(NodeHeap, TooLittleFreeMemoryOnOneNodeIsAnErrorOnAllRanks) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    RankWithFreeMemory full(bootstrap, {.host = 1'000'000});
    const bool is_full = bootstrap.rank() == 1;
    EXPECT_THAT(
        NodeHeap::Create(is_full ? full : bootstrap, {.segment_bytes = is_full ? 0U : 500'000U}),
        StatusIs(
            absl::StatusCode::kResourceExhausted,
            AllOf(HasSubstr(
                      "needs at least 2097152 bytes for each rank, but the node of rank 1 has only 300000"),
                  HasSubstr("use fewer ranks on that node"))));
    return absl::OkStatus();
  });
}

// `ulimit -v` limits them.
TEST(NodeHeap, LeavesHalfOfTheAddressesByDefault) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    RankWithFreeMemory limited(bootstrap, {.host = size_t{1} << 40, .address_space = size_t{64} << 20});
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(limited, {}));
    EXPECT_EQ(heap->segment_bytes(), size_t{16} << 20);
    return absl::OkStatus();
  });
}

// `ulimit -f` limits them.
TEST(NodeHeap, TakesNineTenthsOfTheFilesByDefault) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    RankWithFreeMemory limited(bootstrap, {.host = size_t{1} << 40, .file_sizes = size_t{40} << 20});
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(limited, {}));
    EXPECT_EQ(heap->segment_bytes(), size_t{18} << 20);
    return absl::OkStatus();
  });
}

TEST(NodeHeap, CanBeUsedByConcurrentThreadsOfARank) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = 1 << 20}));
    constexpr int kThreads = 4;
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&heap, thread] {
        for (int i = 0; i < 200; ++i) {
          ASSERT_OK_AND_ASSIGN(std::byte * block, heap->Allocate(1000));
          std::memset(block, thread, 1000);
          EXPECT_EQ(block[999], static_cast<std::byte>(thread));
          heap->TakeViewNumbers(0, heap->next_view_number());
          heap->Free(block);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(heap->allocated_bytes(), 0);
    return absl::OkStatus();
  });
}

// The memory policy of the page at `address`, and its NUMA nodes as bits. Nothing if the system forbids to
// read it.
struct MemoryPolicy {
  int mode;
  unsigned long nodes;
};
std::optional<MemoryPolicy> PolicyOf(void* address) {
  MemoryPolicy policy{};
  const long result =
      syscall(SYS_get_mempolicy, &policy.mode, &policy.nodes, 8 * sizeof(policy.nodes), address, MPOL_F_ADDR);
  return result == 0 ? std::optional(policy) : std::nullopt;
}

// The NUMA node of a page; negative if it has no memory yet.
int NumaNodeOfPage(void* address) {
  int status = -1;
  return syscall(SYS_move_pages, 0, 1L, &address, nullptr, &status, 0) == 0 ? status : -1;
}

TEST(NodeHeap, PlacesTheMemoryOfARankOnItsNumaNode) {
  std::vector<std::byte> probe(size_t{1} << 20);
  if (!PreferNumaNode(probe.data(), probe.size(), 0)) GTEST_SKIP() << "the system forbids to bind memory";
  EXPECT_FALSE(PreferNumaNode(probe.data(), probe.size(), 1'000'000));
  const NodeMap nodes{{0, 0, 0}, {0, 0, NodeMap::kNotBound}};
  EXPECT_OK(RunThreadRanks(nodes, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = size_t{8} << 20}));
    constexpr size_t kBytes = size_t{3} << 20;
    WEFT_ASSIGN_OR_RETURN(std::byte* const block, heap->Allocate(kBytes));
    // Committed at once, by its own rank.
    for (std::byte* page : {block, block + kBytes - 1}) {
      EXPECT_EQ(NumaNodeOfPage(page), 0);
      const std::optional<MemoryPolicy> policy = PolicyOf(page);
      EXPECT_TRUE(policy.has_value());
      if (!policy) break;
      EXPECT_EQ(policy->mode == MPOL_DEFAULT, bootstrap.rank() == 2);
      EXPECT_EQ(policy->nodes, bootstrap.rank() == 2 ? 0u : 1u);
    }
    return absl::OkStatus();
  }));
}

TEST(NodeHeap, HasTheSameBlocksAfterAnAllocationForWhichTheNodeHasNoMemory) {
  const auto ranks = MakeThreadBootstraps(NodeMap::OneNode(1));
  RankWithFreeMemory full(*ranks[0], {.host = 1000});
  ASSERT_OK_AND_ASSIGN(const auto heap, NodeHeap::Create(full, {.segment_bytes = 1 << 20}));
  EXPECT_THAT(heap->Allocate(100), StatusIs(absl::StatusCode::kResourceExhausted,
                                            HasSubstr("node heap of rank 0: the node has no memory")));
  EXPECT_EQ(heap->allocated_bytes(), 0);
}

// A rank whose system does not tell the free memory.
class RankWithUnknownMemory final : public ::weft::testing::ForwardingBootstrap {
 public:
  using ForwardingBootstrap::ForwardingBootstrap;
  absl::StatusOr<FreeMemory> FreeNodeMemory() const override { return absl::InternalError("no /proc"); }
};

TEST(NodeHeap, SaysThatItsLimitIsUnknownIfTheSystemDoesNotTell) {
  const auto ranks = MakeThreadBootstraps(NodeMap::OneNode(1));
  RankWithUnknownMemory rank(*ranks[0]);
  ASSERT_OK_AND_ASSIGN(const auto heap, NodeHeap::Create(rank, {.segment_bytes = 1 << 20}));
  EXPECT_THAT(heap->Allocate(2 << 20),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("which resource limits it is unknown: no /proc"),
                             ::testing::Not(HasSubstr("the memory of the host")))));
}

TEST(NodeHeap, HoldsTheBytesOfTheSegmentsOfItsNode) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    constexpr size_t kBytes = 1 << 20;
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = kBytes}));
    for (int rank = 0; rank < 4; ++rank) {
      const bool is_of_node = bootstrap.node_map().SameNode(rank, bootstrap.rank());
      EXPECT_EQ(heap->Holds({.rank = rank, .offset = 0}, kBytes), is_of_node);
      EXPECT_EQ(heap->Holds({.rank = rank, .offset = kBytes}, 0), is_of_node);
      EXPECT_FALSE(heap->Holds({.rank = rank, .offset = 1}, kBytes));
      EXPECT_FALSE(heap->Holds({.rank = rank, .offset = kBytes + 1}, 0));
    }
    EXPECT_FALSE(heap->Holds({.rank = 4, .offset = 0}, 1));  // A view that does not exist.
    return absl::OkStatus();
  });
}

TEST(NodeHeap, CountsTheBytesOfAllBlocksEverAllocated) {
  const auto ranks = MakeThreadBootstraps(NodeMap::OneNode(1));
  ASSERT_OK_AND_ASSIGN(const auto heap, NodeHeap::Create(*ranks[0], {.segment_bytes = 1 << 20}));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(std::byte * block, heap->Allocate(100));
    heap->Free(block);
  }
  EXPECT_FALSE(heap->Allocate(2 << 20).ok());
  EXPECT_EQ(heap->total_allocated_bytes(), 3 * 128);
}

TEST(NodeHeapDeathTest, AbortsForMemoryOutsideTheHeap) {
  const auto ranks = MakeThreadBootstraps(NodeMap::OneNode(1));
  ASSERT_OK_AND_ASSIGN(const auto heap, NodeHeap::Create(*ranks[0], {.segment_bytes = 1 << 20}));
  std::byte elsewhere{};
  EXPECT_DEATH(heap->Free(&elsewhere), "not in this rank's segment");
  EXPECT_DEATH(heap->Resolve({.rank = 1, .offset = 0}), "rank on another node");
}

}  // namespace
}  // namespace weft
