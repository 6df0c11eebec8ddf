#include "src/cli/nearest.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("", "ab"), 2);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("stpes", "steps"), 1);
  EXPECT_EQ(EditDistance("ab", "ba"), 1);
}

TEST(Nearest, IsTheCandidateWithTheSmallestDistance) {
  EXPECT_EQ(Nearest("stpes", {"seed", "steps", "lr"}), "steps");
  EXPECT_EQ(Nearest("cosin", {"constant", "linear", "cosine"}), "cosine");
  EXPECT_EQ(Nearest("x", {}), "");
}

}  // namespace
}  // namespace weft
