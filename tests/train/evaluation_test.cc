// Assignment of evaluation windows to ranks and passes, and the order in which losses are added.
#include <vector>

#include <gtest/gtest.h>

#include "src/train/data/evaluation_plan.h"

namespace weft {
namespace {

TEST(EvaluationPlan, AssignsEveryWindowToOneRankInOrder) {
  for (const int64_t windows : {1, 2, 3, 64, 65, 1000}) {
    for (const int64_t seq_len : {1, 16, 600, 2048}) {
      for (const int ranks : {1, 2, 3, 4, 7}) {
        const EvaluationPlan plan{windows, seq_len, ranks};
        int64_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          for (int64_t round = 0; round < plan.rounds(); ++round) {
            const SequenceRange part = plan.Windows(rank, round);
            if (part.count == 0) continue;
            EXPECT_EQ(part.first, next);
            next += part.count;
          }
          EXPECT_EQ(plan.Windows(rank, plan.rounds()).count, 0) << "a pass that no round reaches";
        }
        EXPECT_EQ(next, windows) << windows << " windows of " << seq_len << " on " << ranks;
      }
    }
  }
}

TEST(EvaluationPlan, OrdersLossesByRankPartAndPassAndAddsThemByPass) {
  for (const int ranks : {1, 2, 3}) {
    const EvaluationPlan plan{/*windows=*/5, /*seq_len=*/1024, ranks, /*context=*/2};
    std::vector<double> losses;
    for (int rank = 0; rank < ranks; ++rank) {
      for (int part = 0; part < 2; ++part) {
        EXPECT_EQ(plan.FirstLoss(rank, part), static_cast<int64_t>(losses.size()));
        for (int64_t pass = plan.FirstPass(rank); pass < plan.FirstPass(rank + 1); ++pass) {
          losses.push_back(part == 0 ? 1e16
                                     : static_cast<double>(pass) -
                                           1e16);  // The two parts of a pass add up to its number.
        }
      }
    }
    EXPECT_EQ(plan.losses(), static_cast<int64_t>(losses.size()));
    EXPECT_EQ(plan.Sum(losses), 0 + 0 + 2 + 4 + 4) << "1e16 + 1 is 1e16, and 1e16 + 3 is 1e16 + 4";
  }
}

TEST(EvaluationPlan, MakesTheSamePassesForEveryNumberOfRanks) {
  const EvaluationPlan one{100, 16, 1};
  const EvaluationPlan four{100, 16, 4};
  EXPECT_EQ(one.windows_per_pass(), four.windows_per_pass());
  EXPECT_EQ(one.passes(), four.passes());
  EXPECT_EQ(EvaluationPlan({100, 5000, 4}).windows_per_pass(), 1);
}

}  // namespace
}  // namespace weft
