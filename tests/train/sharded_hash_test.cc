// Comparison of the weights of replicas: which rank is named.
#include "src/train/loop/sharded_hash.h"

#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

std::vector<ShardDigests> Replicas(int count) {
  std::vector<ShardDigests> digests;
  for (int replica = 0; replica < count; ++replica) {
    digests.push_back({{"a", 1}, {"b", 2}});
    digests.push_back({{"a", 3}, {"b", 4}});
  }
  return digests;
}

TEST(CompareReplicas, AcceptsEqualReplicas) {
  EXPECT_OK(CompareReplicas(Replicas(1), 2));
  EXPECT_OK(CompareReplicas(Replicas(3), 2));
  EXPECT_OK(CompareReplicas({{{"a", 1}}, {{"a", 1}}}, 1));
}

TEST(CompareReplicas, NamesTheRankOfTheMinority) {
  for (const size_t rank : {0, 3, 5}) {
    std::vector<ShardDigests> digests = Replicas(3);
    digests[rank]["b"] = 99;
    EXPECT_THAT(CompareReplicas(digests, 2),
                StatusIs(absl::StatusCode::kInternal,
                         AllOf(HasSubstr(absl::StrCat("rank ", rank, " holds")), HasSubstr("'b'"))));
  }
}

TEST(CompareReplicas, NamesAllRanksOfTheMinority) {
  std::vector<ShardDigests> digests = Replicas(5);
  digests[3]["a"] = 99;
  digests[7]["a"] = 98;
  EXPECT_THAT(
      CompareReplicas(digests, 2),
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("ranks 3, 7 hold other weights than the majority"), HasSubstr("'a'"))));
}

TEST(CompareReplicas, NamesAllRanksWithoutAMajority) {
  std::vector<ShardDigests> digests = Replicas(2);
  digests[3]["a"] = 99;
  EXPECT_THAT(
      CompareReplicas(digests, 2),
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("ranks 1, 3 hold different weights, without a majority"), HasSubstr("'a'"))));
}

}  // namespace
}  // namespace weft
