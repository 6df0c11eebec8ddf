#include "weft/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

// Restores the calling thread's thread count.
class ThreadCountGuard {
 public:
  ThreadCountGuard() : before_(ThreadCount()) {}
  ~ThreadCountGuard() { SetThreadCount(before_); }

 private:
  const int before_;
};

std::vector<std::pair<int64_t, int64_t>> RangesOf(int64_t count, int64_t grain) {
  std::mutex mutex;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  ParallelFor(count, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST(ParallelFor, PartitionsIntoOneRangePerThreadOrFewerLongOnes) {
  const ThreadCountGuard guard;
  for (const int threads : {1, 2, 3, 7}) {
    SetThreadCount(threads);
    for (const int64_t count : {1, 2, 3, 6, 7, 100, 1009}) {
      for (const int64_t grain : {0, 1, 2, 50, 5000}) {
        const auto ranges = RangesOf(count, grain);
        const int64_t ranges_of_grain = count / std::max<int64_t>(grain, 1);
        ASSERT_EQ(static_cast<int64_t>(ranges.size()),
                  std::clamp<int64_t>(ranges_of_grain, 1, ThreadCount()));
        int64_t next = 0;
        for (const auto& [begin, end] : ranges) {
          EXPECT_EQ(begin, next);
          EXPECT_GE(end - begin, std::min(std::max<int64_t>(grain, 1), count));
          next = end;
        }
        EXPECT_EQ(next, count);
      }
    }
  }
}

TEST(ParallelFor, DoesNotCallTheBodyForAnEmptyRange) {
  EXPECT_TRUE(RangesOf(0, 1).empty());
  EXPECT_TRUE(RangesOf(-3, 1).empty());
}

TEST(ParallelFor, CanBeNested) {
  std::atomic<int64_t> sum = 0;
  ParallelFor(16, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ParallelFor(100, 1, [&](int64_t inner_begin, int64_t inner_end) { sum += inner_end - inner_begin; });
    }
  });
  EXPECT_EQ(sum, 1600);
}

TEST(ParallelFor, SetsOneThreadInsideConcurrentRanges) {
  const ThreadCountGuard guard;
  SetThreadCount(2);
  const int outside = ThreadCount();
  std::atomic<bool> alone = true;
  ParallelFor(2, 1, [&](int64_t begin, int64_t end) {
    if (end - begin < 2 && ThreadCount() != 1) alone = false;
  });
  EXPECT_TRUE(alone);
  EXPECT_EQ(ThreadCount(), outside);
}

TEST(ParallelFor, CanBeCalledByConcurrentThreads) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([rank] {
      SetThreadCount(1 + rank % 2);
      std::vector<int> values(10'000);
      for (int round = 1; round <= 20; ++round) {
        ParallelFor(static_cast<int64_t>(values.size()), 16, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += rank + 1;
        });
        EXPECT_TRUE(
            std::all_of(values.begin(), values.end(), [&](int v) { return v == round * (rank + 1); }));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(ThreadCount, BelongsToTheCallingThread) {
  const ThreadCountGuard guard;
  SetThreadCount(1);
  EXPECT_EQ(ThreadCount(), 1);
  std::thread([] { SetThreadCount(2); }).join();
  EXPECT_EQ(ThreadCount(), 1);
}

TEST(ThreadCountDeathTest, AbortsForLessThanOneThread) {
  EXPECT_DEATH(SetThreadCount(0), "at least one thread");
}

}  // namespace
}  // namespace weft
