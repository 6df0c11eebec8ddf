#include "weft/core/size_text.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(SizeText, HasAtMostOneDecimal) {
  EXPECT_EQ(SizeText(0), "0 B");
  EXPECT_EQ(SizeText(1023), "1023 B");
  EXPECT_EQ(SizeText(1536), "1.5 KiB");
  EXPECT_EQ(SizeText(int64_t{100} << 20), "100 MiB");
  EXPECT_EQ(SizeText(int64_t{3} << 50), "3072 TiB");
}

TEST(SizeText, IsRoundedBeforeItsUnitIsChosen) {
  EXPECT_EQ(SizeText((int64_t{100} << 20) - 1), "100 MiB");
  EXPECT_EQ(SizeText((int64_t{1} << 20) - 1), "1.0 MiB");
}

TEST(Count, AddsAnSUnlessThereIsOne) {
  EXPECT_EQ(Count(0, "rank"), "0 ranks");
  EXPECT_EQ(Count(1, "rank"), "1 rank");
  EXPECT_EQ(Count(11, "rank"), "11 ranks");
  EXPECT_EQ(Count(1.5, "CPU"), "1.5 CPUs");
}

}  // namespace
}  // namespace weft
