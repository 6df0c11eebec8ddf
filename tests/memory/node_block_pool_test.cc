// Blocks that outlive the pool, the heap's handles and the bootstrap's.
#include "weft/memory/node_block_pool.h"

#include <cstring>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/mesh/thread_bootstrap.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// Handles of a heap and its bootstrap, and of an object that the pool destroys after the heap.
struct Owners {
  std::shared_ptr<Bootstrap> bootstrap;
  std::shared_ptr<NodeHeap> heap;
  std::shared_ptr<int> witness = std::make_shared<int>(0);

  static absl::StatusOr<Owners> Make(size_t segment_bytes = 1 << 20) {
    Owners owners;
    owners.bootstrap = std::move(MakeThreadBootstraps(NodeMap::OneNode(1))[0]);
    NodeHeap::Options options;
    options.segment_bytes = segment_bytes;
    options.poison_released = true;
    absl::StatusOr<std::unique_ptr<NodeHeap>> heap = NodeHeap::Create(*owners.bootstrap, options);
    if (!heap.ok()) return heap.status();
    owners.heap = *std::move(heap);
    return owners;
  }
  NodeBlockPool Pool(NodeBlockPool::Options options = {}) const {
    return NodeBlockPool(heap, {bootstrap, witness}, std::move(options));
  }
};

TEST(NodeBlockPool, BlocksOutliveThePoolTheHeapAndTheBootstrap) {
  std::shared_ptr<std::byte> block;
  std::weak_ptr<int> witness;
  std::weak_ptr<NodeHeap> heap;
  {
    ASSERT_OK_AND_ASSIGN(Owners owners, Owners::Make());
    witness = owners.witness;
    heap = owners.heap;
    NodeBlockPool pool = owners.Pool();
    ASSERT_OK_AND_ASSIGN(block, pool.Allocate(5000));
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<std::byte> dropped, pool.Allocate(5000));
    std::memset(dropped.get(), 1, 5000);
  }
  ASSERT_FALSE(heap.expired());
  ASSERT_FALSE(witness.expired());
  EXPECT_TRUE(heap.lock()->AddressOf(block.get()));
  std::memset(block.get(), 7, 5000);
  std::shared_ptr<std::byte> copy = block;
  block.reset();
  EXPECT_FALSE(heap.expired());
  EXPECT_EQ(copy.get()[4999], std::byte{7});
  std::thread([&] { copy.reset(); }).join();
  EXPECT_TRUE(heap.expired());
  EXPECT_TRUE(witness.expired());
}

TEST(NodeBlockPool, RefusesMoreThanItsBoundAndWorksOn) {
  ASSERT_OK_AND_ASSIGN(const Owners owners, Owners::Make());
  NodeBlockPool pool = owners.Pool({.name = "tensors", .max_bytes = 1024});
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<std::byte> first, pool.Allocate(700));
  EXPECT_EQ(pool.in_use_bytes(), 704);
  EXPECT_THAT(pool.Allocate(321), StatusIs(absl::StatusCode::kResourceExhausted,
                                           AllOf(HasSubstr("node block pool tensors"), HasSubstr("321 bytes"),
                                                 HasSubstr("704 are in use"))));
  EXPECT_THAT(pool.Allocate(~size_t{0}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("tensors")));
  EXPECT_OK(pool.Allocate(320));
  first.reset();
  EXPECT_OK(pool.Allocate(1024));
  EXPECT_EQ(pool.in_use_bytes(), 0);
}

TEST(NodeBlockPool, SaysThatTheHeapIsExhaustedAndWorksOn) {
  ASSERT_OK_AND_ASSIGN(const Owners owners, Owners::Make(1 << 16));
  NodeBlockPool pool = owners.Pool({.name = "tensors"});
  EXPECT_THAT(pool.Allocate(1 << 17), StatusIs(absl::StatusCode::kResourceExhausted,
                                               AllOf(HasSubstr("tensors"), HasSubstr("131072 bytes"))));
  EXPECT_OK(pool.Allocate(1 << 14));
}

TEST(NodeBlockPool, GivesBlocksToManyThreads) {
  ASSERT_OK_AND_ASSIGN(const Owners owners, Owners::Make(size_t{16} << 20));
  NodeBlockPool pool = owners.Pool();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&pool, thread] {
      for (size_t i = 0; i < 200; ++i) {
        const size_t bytes = 64 + i * 37 % 3000;
        absl::StatusOr<std::shared_ptr<std::byte>> block = pool.Allocate(bytes);
        ASSERT_OK(block.status());
        std::memset(block->get(), thread, bytes);
        EXPECT_EQ(block->get()[bytes - 1], std::byte(thread));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.in_use_bytes(), 0);
}

TEST(NodeBlockPool, ReusesABlockOfTheSameSize) {
  ASSERT_OK_AND_ASSIGN(const Owners owners, Owners::Make());
  NodeBlockPool pool = owners.Pool();
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<std::byte> block, pool.Allocate(5000));
  const std::byte* data = block.get();
  block.reset();
  ASSERT_OK_AND_ASSIGN(block, pool.Allocate(4990));
  EXPECT_EQ(block.get(), data);
}

}  // namespace
}  // namespace weft
