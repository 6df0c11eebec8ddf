// All-gathers through a store: the keys that a rank reads, and late ranks.
#include "src/mesh/store/store_gather.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/mesh/base/deadline.h"
#include "tests/mesh/support/memory_store.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"

namespace weft::internal {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::kTestTimeout;
using ::weft::testing::MemoryStore;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

// Counts the reads and writes of one rank.
class CountingStore final : public KeyValueStore {
 public:
  explicit CountingStore(std::shared_ptr<KeyValueStore> store) : store_(std::move(store)) {}
  absl::Status Set(std::string_view key, std::string_view value) override {
    ++writes_;
    return store_->Set(key, value);
  }
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
    ++reads_;
    return store_->Get(key, timeout);
  }
  absl::Status Delete(std::string_view key) override {
    return deletes_ ? store_->Delete(key) : absl::InternalError("cannot delete");
  }
  void FailDeletes(bool fail) { deletes_ = !fail; }
  int reads() const { return reads_; }
  int writes() const { return writes_; }

 private:
  const std::shared_ptr<KeyValueStore> store_;
  int reads_ = 0;
  int writes_ = 0;
  bool deletes_ = true;
};

StoreGather GatherOf(const std::shared_ptr<KeyValueStore>& store, int rank, int size) {
  return {store, "test", "gather", rank, size};
}

std::string BlobOf(int rank) { return std::string(static_cast<size_t>(rank % 3), static_cast<char>(rank)); }

void ExpectAllBlobs(const absl::StatusOr<std::vector<std::string>>& blobs, int size) {
  ASSERT_OK(blobs);
  ASSERT_EQ(static_cast<int>(blobs->size()), size);
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ((*blobs)[static_cast<size_t>(rank)], BlobOf(rank));
}

TEST(StoreGather, ARankReadsAtMostNineKeysOfARound) {
  for (const int size : {1, 2, 9, 10, 40}) {
    const auto store = std::make_shared<MemoryStore>();
    RunRanks(size, [&](int rank) {
      const auto counted = std::make_shared<CountingStore>(store);
      ExpectAllBlobs(GatherOf(counted, rank, size).AllGather(1, BlobOf(rank), kTestTimeout), size);
      EXPECT_LE(counted->reads(), 9);
      EXPECT_LE(counted->writes(), 2);
    });
  }
}

// All ranks but one give up at once, in random order. See Note [Trees in a store].
TEST(StoreGather, ALateRankCompletesARoundThatItsPeersHaveGivenUp) {
  constexpr int kSize = 20;
  std::mt19937 random(1);
  for (const int late : {0, 1, 9, kSize - 1}) {
    SCOPED_TRACE(late);
    const auto store = std::make_shared<MemoryStore>();
    std::vector<int> others;
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank != late) others.push_back(rank);
    }
    std::shuffle(others.begin(), others.end(), random);
    for (const int rank : others) {
      EXPECT_THAT(GatherOf(store, rank, kSize).AllGather(1, BlobOf(rank), absl::ZeroDuration()),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("did not arrive")));
    }
    // Now that all others have called, each names exactly the late rank.
    for (const int rank : others) {
      EXPECT_EQ(GatherOf(store, rank, kSize).AllGather(1, BlobOf(rank), absl::ZeroDuration()).status(),
                MissingRanksError("gather", {late}, absl::ZeroDuration()));
    }
    const auto counted = std::make_shared<CountingStore>(store);
    ExpectAllBlobs(GatherOf(counted, late, kSize).AllGather(1, BlobOf(late), absl::ZeroDuration()), kSize);
    EXPECT_LT(counted->reads(), kSize);
    for (const int rank : others)
      ExpectAllBlobs(GatherOf(store, rank, kSize).AllGather(1, BlobOf(rank), absl::ZeroDuration()), kSize);
  }
}

TEST(StoreGather, ReturnsTheBlobsAlthoughAnEarlierOneCannotBeDeleted) {
  const auto store = std::make_shared<MemoryStore>();
  const auto counted = std::make_shared<CountingStore>(store);
  StoreGather gather = GatherOf(counted, 0, 1);
  counted->FailDeletes(true);
  for (const int round : {1, 2, 3}) ExpectAllBlobs(gather.AllGather(round, BlobOf(0), kTestTimeout), 1);
  EXPECT_EQ(store->size(), 3U);
  counted->FailDeletes(false);
  ExpectAllBlobs(gather.AllGather(4, BlobOf(0), kTestTimeout), 1);
  EXPECT_EQ(store->size(), 1U);
}

TEST(StoreGather, RefusesValuesOfOtherPrograms) {
  const auto store = std::make_shared<MemoryStore>();
  ASSERT_OK(store->Set("test/1/0.subtree", "something else"));
  EXPECT_THAT(GatherOf(store, 9, 10).AllGather(1, "blob", kTestTimeout),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("test/1/0.subtree")));
}

}  // namespace
}  // namespace weft::internal
