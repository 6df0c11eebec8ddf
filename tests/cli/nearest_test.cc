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
  EXPECT_EQ(Nearest("reduce", {"reduce-scatter", "none"}), "reduce-scatter");
  EXPECT_EQ(Nearest("cosin", {"constant", "linear", "cosine"}), "cosine");
  EXPECT_EQ(Nearest("x", {}), "");
}

TEST(Nearest, IsEmptyIfNoCandidateResemblesTheWord) {
  EXPECT_EQ(Nearest("timeout", {"dim", "lr"}), "");
  EXPECT_EQ(Nearest("foo", {"plan", "train"}), "");
}

TEST(Suggestion, NamesTheNearestCandidateOrWhatToDoOtherwise) {
  EXPECT_EQ(Suggestion("stpes", {"steps"}, ": see --help", "--"), "; did you mean --steps?");
  EXPECT_EQ(Suggestion("foo", {"steps"}, ": see --help", "--"), ": see --help");
}

}  // namespace
}  // namespace weft
