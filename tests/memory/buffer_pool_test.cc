#include "weft/memory/buffer_pool.h"

#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/mesh/thread_bootstrap.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

class BufferPoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ranks_ = MakeThreadBootstraps(NodeMap::OneNode(1));
    ASSERT_OK_AND_ASSIGN(heap_, NodeHeap::Create(*ranks_[0], {.segment_bytes = 1 << 20}));
    pool_.emplace(*heap_, "gradients");
  }

  std::vector<std::unique_ptr<Bootstrap>> ranks_;
  std::unique_ptr<NodeHeap> heap_;
  std::optional<BufferPool> pool_;
};

TEST_F(BufferPoolTest, ReusesAnIdleBlockOfTheSameSize) {
  ASSERT_OK_AND_ASSIGN(Buffer first, pool_->Acquire(1000));
  EXPECT_EQ(first.bytes(), 1000);
  const std::byte* data = first.data();
  first.Reset();
  EXPECT_FALSE(first);
  EXPECT_EQ(pool_->idle_bytes(), 1024);
  ASSERT_OK_AND_ASSIGN(const Buffer other, pool_->Acquire(2000));
  EXPECT_NE(other.data(), data);
  ASSERT_OK_AND_ASSIGN(const Buffer again, pool_->Acquire(1010));  // The same block size.
  EXPECT_EQ(again.data(), data);
  EXPECT_EQ(again.bytes(), 1010);
  EXPECT_EQ(pool_->idle_bytes(), 0);
  EXPECT_EQ(pool_->in_use_bytes(), 1024 + 2048);
  EXPECT_EQ(heap_->allocated_bytes(), 1024 + 2048);
}

TEST_F(BufferPoolTest, ReportsThePeakOfBytesInUse) {
  std::mt19937 random(3);
  std::vector<Buffer> buffers;
  size_t in_use = 0;
  size_t peak = 0;
  for (int step = 0; step < 2000; ++step) {
    if (step == 1000) {
      pool_->ResetPeak();
      peak = in_use;
    }
    if (buffers.empty() || (buffers.size() < 20 && random() % 2 == 0)) {
      const size_t granules = 1 + random() % 50;
      ASSERT_OK_AND_ASSIGN(Buffer buffer, pool_->Acquire(64 * granules));
      buffers.push_back(std::move(buffer));
      in_use += 64 * granules;
      peak = std::max(peak, in_use);
    } else {
      std::swap(buffers[random() % buffers.size()], buffers.back());
      in_use -= buffers.back().bytes();
      buffers.pop_back();
    }
    ASSERT_EQ(pool_->in_use_bytes(), in_use);
    ASSERT_EQ(pool_->peak_bytes(), peak);
    // A block may be an eighth larger than the request that it holds.
    ASSERT_GE(heap_->allocated_bytes(), pool_->in_use_bytes() + pool_->idle_bytes());
    ASSERT_LE(heap_->allocated_bytes(), pool_->in_use_bytes() / 8 * 9 + pool_->idle_bytes());
  }
}

TEST_F(BufferPoolTest, MovesBuffersWithoutReleasingThem) {
  ASSERT_OK_AND_ASSIGN(Buffer a, pool_->Acquire(64));
  ASSERT_OK_AND_ASSIGN(Buffer b, pool_->Acquire(128));
  const std::byte* data = a.data();
  b = std::move(a);  // Releases b's block.
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(pool_->in_use_bytes(), 64);
  EXPECT_EQ(pool_->idle_bytes(), 128);
  const Buffer c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(pool_->in_use_bytes(), 64);
}

TEST_F(BufferPoolTest, ReturnsIdleBlocksToTheHeapWhenTrimmed) {
  ASSERT_OK_AND_ASSIGN(Buffer kept, pool_->Acquire(64));
  ASSERT_OK(pool_->Acquire(4096));
  EXPECT_EQ(pool_->idle_bytes(), 4096);
  pool_->Trim();
  EXPECT_EQ(pool_->idle_bytes(), 0);
  EXPECT_EQ(heap_->allocated_bytes(), 64);
  kept.Reset();
  pool_.reset();
  EXPECT_EQ(heap_->allocated_bytes(), 0);
}

TEST_F(BufferPoolTest, MayBeDestroyedBeforeItsBuffers) {
  ASSERT_OK_AND_ASSIGN(Buffer kept, pool_->Acquire(64));
  pool_.reset();
  EXPECT_EQ(heap_->allocated_bytes(), 64);
  kept.data()[0] = std::byte{1};
  kept.Reset();
  EXPECT_EQ(heap_->allocated_bytes(), 0);
}

TEST_F(BufferPoolTest, FreesIdleBlocksBeforeItFails) {
  ASSERT_OK(pool_->Acquire(700'000));
  ASSERT_OK_AND_ASSIGN(const Buffer large, pool_->Acquire(900'000));
  EXPECT_EQ(pool_->idle_bytes(), 0);
  EXPECT_THAT(pool_->Acquire(500'000),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("buffer pool gradients"), HasSubstr("900032 bytes in use"),
                             HasSubstr("0 idle"), HasSubstr("cannot allocate 500000 bytes"))));
  EXPECT_EQ(pool_->in_use_bytes(), 900'032);
}

TEST_F(BufferPoolTest, ReusesAnIdleBlockThatIsUpToAnEighthLarger) {
  ASSERT_OK(pool_->Acquire(64 * 90));
  ASSERT_OK(pool_->Acquire(64 * 100));  // Reuses nothing: the idle block is smaller.
  {
    ASSERT_OK_AND_ASSIGN(const Buffer best, pool_->Acquire(64 * 85));
    ASSERT_OK_AND_ASSIGN(const Buffer larger, pool_->Acquire(64 * 89));
    EXPECT_EQ(pool_->idle_bytes(), 0);
    EXPECT_EQ(pool_->in_use_bytes(), 64 * (85 + 89));
    EXPECT_EQ(heap_->allocated_bytes(), 64 * (90 + 100));
  }
  EXPECT_EQ(pool_->idle_bytes(), 64 * (90 + 100));
  ASSERT_OK(pool_->Acquire(64 * 79));  // Too small for both.
  EXPECT_EQ(pool_->idle_bytes(), 64 * (90 + 100 + 79));
}

TEST_F(BufferPoolTest, TakesBackIdleBlocksOfOtherPoolsBeforeItFails) {
  BufferPool other(*heap_, "images");
  ASSERT_OK(other.Acquire(700'000));
  ASSERT_OK_AND_ASSIGN(const Buffer large, pool_->Acquire(900'000));
  EXPECT_EQ(other.idle_bytes(), 0);
  EXPECT_THAT(other.Acquire(500'000), StatusIs(absl::StatusCode::kResourceExhausted,
                                               HasSubstr("buffer pool images (0 bytes in use")));
}

// Sizes of packed documents: no two steps request the same.
TEST(BufferPool, KeepsItsMemoryBoundedIfEveryStepRequestsOtherSizes) {
  constexpr size_t kMiB = size_t{1} << 20;
  const auto ranks = MakeThreadBootstraps(NodeMap::OneNode(1));
  ASSERT_OK_AND_ASSIGN(const auto heap, NodeHeap::Create(*ranks[0], {.segment_bytes = 64 * kMiB}));
  BufferPool pool(*heap, "keys");
  std::mt19937 random(5);
  for (int step = 0; step < 1000; ++step) {
    std::vector<Buffer> buffers;
    for (int i = 0; i < 6; ++i) {
      ASSERT_OK_AND_ASSIGN(Buffer buffer, pool.Acquire(kMiB / 2 + random() % kMiB));
      buffers.push_back(std::move(buffer));
    }
  }
  EXPECT_LT(pool.peak_bytes(), 9 * kMiB);
  EXPECT_LT(heap->peak_bytes(), pool.peak_bytes() / 4 * 5 + pool.peak_bytes() / 8);
}

TEST_F(BufferPoolTest, ServesConcurrentThreadsFromSeveralPoolsOfAFullHeap) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([this, thread] {
      BufferPool pool(*heap_, "pool");
      for (size_t i = 0; i < 200; ++i) {
        // Two threads at once leave too little for a third one.
        const absl::StatusOr<Buffer> buffer =
            pool.Acquire(200'000 + 64 * (i % 7 + static_cast<size_t>(thread)) * 500);
        if (buffer.ok()) buffer->data()[0] = std::byte{1};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(heap_->allocated_bytes(), 0);
}

TEST_F(BufferPoolTest, CanBeUsedByConcurrentThreads) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this] {
      for (int i = 0; i < 200; ++i) {
        ASSERT_OK_AND_ASSIGN(const Buffer buffer, pool_->Acquire(64 * (1 + i % 3)));
        buffer.data()[0] = std::byte{1};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool_->in_use_bytes(), 0);
}

}  // namespace
}  // namespace weft
