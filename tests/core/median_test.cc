#include "weft/core/median.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Median, IsTheMiddleValueOrTheMeanOfTheTwoMiddleOnes) {
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({5, 1}), 3);
  EXPECT_EQ(Median({9, 1, 2}), 2);
  EXPECT_EQ(Median({8, 1, 2, 4}), 3);
  EXPECT_EQ(Median({2, 2, 7, 1, 2, 9}), 2);
}

}  // namespace
}  // namespace weft
