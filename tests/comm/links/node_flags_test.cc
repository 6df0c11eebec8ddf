// Flags of ranks in node memory: counts of arrivals.
#include "src/comm/links/node_flags.h"

#include <gtest/gtest.h>

namespace weft::shared_memory {
namespace {

using Arrived = NodeLink::Arrived;

TEST(Arrivals, AreEqualOnlyIfAllHashesAre) {
  constexpr uint64_t kHash = 0x9e3779b97f4a7c15;
  for (const int ranks : {1, 2, 3, 64, 65'535}) {
    uint64_t arrived = 0;
    for (int rank = 1; rank < ranks; ++rank) arrived += Arrivals::Arrival(kHash);
    if (ranks > 1) {
      EXPECT_EQ(Arrivals::Compare(arrived, ranks, kHash), Arrived::kSome) << ranks;
    }
    EXPECT_EQ(Arrivals::Compare(arrived + Arrivals::Arrival(kHash), ranks, kHash), Arrived::kAllEqual)
        << ranks;
    for (const int bit : {0, 1, 31, 47}) {
      const uint64_t other = kHash ^ (uint64_t{1} << bit);
      const uint64_t with_other = arrived + Arrivals::Arrival(other);
      EXPECT_EQ(Arrivals::Compare(with_other, ranks, kHash), Arrived::kUnequal) << ranks << " " << bit;
    }
    if (ranks < 65'535) {
      const uint64_t surplus = arrived + 2 * Arrivals::Arrival(kHash);
      EXPECT_EQ(Arrivals::Compare(surplus, ranks, kHash), Arrived::kTooMany) << ranks;
    }
  }
}

}  // namespace
}  // namespace weft::shared_memory
