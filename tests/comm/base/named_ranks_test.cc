#include "src/comm/base/named_ranks.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

NamedRanks NamedIn(std::string_view text) { return RanksNamedIn(text, /*ranks=*/200); }

TEST(NamedRanks, AreThoseThatADescriptionNames) {
  const NamedRanks named =
      NamedIn(absl::StrCat("rank 7: deadline passed; ", DescribeMissing({3, 14}, {5}),
                           "is queued behind x, which ", DescribeAwaited({2, 11}), "; 8 connections"));
  EXPECT_THAT(named.silent, ElementsAre(3, 14));
  EXPECT_THAT(named.late, ElementsAre(5));
  EXPECT_THAT(named.awaited, ElementsAre(2, 11));
  EXPECT_THAT(NamedIn(DescribeMissing({}, {0, 12})).late, ElementsAre(0, 12));
  EXPECT_THAT(NamedIn(DescribeAwaited({4})).awaited, ElementsAre(4));
  EXPECT_THAT(NamedIn(absl::StrCat(DescribeAwaited({4}), " to send it")).awaited, ElementsAre(4));
  EXPECT_THAT(NamedIn(DescribeSource(9)).awaited, ElementsAre(9));
}

TEST(NamedRanks, AreRanksOfTheRun) {
  EXPECT_THAT(RanksNamedIn(DescribeAwaited({3, 4, 5}), /*ranks=*/4).awaited, ElementsAre(3));
}

TEST(NamedRanks, AreNoneInOtherTexts) {
  for (const char* text : {"", "rank(s) ", "waits for rank(s) ", "no heartbeat from rank(s) x",
                           "the connection to rank 3 has ended", "waits for any rank to send it"}) {
    const NamedRanks named = NamedIn(text);
    EXPECT_THAT(named.silent, IsEmpty()) << text;
    EXPECT_THAT(named.late, IsEmpty()) << text;
    EXPECT_THAT(named.awaited, IsEmpty()) << text;
  }
}

// A notice to other ranks has a limited length.
TEST(NamedRanks, OfACutTextHaveNoPartOfANumber) {
  const std::string text = DescribeMissing({23, 145}, {67});
  for (size_t length = 0; length < text.size(); ++length) {
    const NamedRanks named = NamedIn(CutText(text, length));
    for (const int rank : named.silent) EXPECT_TRUE(rank == 23 || rank == 145) << rank;
    for (const int rank : named.late) EXPECT_EQ(rank, 67);
  }
  const std::string awaited = DescribeAwaited({23, 145});
  for (size_t length = 0; length <= awaited.size(); ++length) {
    for (const int rank : NamedIn(CutText(awaited, length)).awaited)
      EXPECT_TRUE(rank == 23 || rank == 145) << rank;
  }
  EXPECT_THAT(NamedIn(CutText(awaited, awaited.size())).awaited, ElementsAre(23, 145));
  EXPECT_THAT(NamedIn(CutText(text, text.find("45"))).silent, ElementsAre(23));
}

}  // namespace
}  // namespace weft
