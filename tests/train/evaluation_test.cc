// Which windows evaluation takes where.
#include <vector>

#include <gtest/gtest.h>

#include "src/train/evaluation_plan.h"

namespace weft {
namespace {

TEST(EvaluationPlan, GivesEveryWindowToOneRankOnceInOrder) {
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

TEST(EvaluationPlan, CutsPassesWithoutRegardToRanks) {
  const EvaluationPlan one{100, 16, 1};
  const EvaluationPlan four{100, 16, 4};
  EXPECT_EQ(one.windows_per_pass(), four.windows_per_pass());
  EXPECT_EQ(one.passes(), four.passes());
  EXPECT_EQ(EvaluationPlan({100, 5000, 4}).windows_per_pass(), 1);
}

}  // namespace
}  // namespace weft
