#include "src/comm/phases/streams.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(PrefixCounter, CountsFinishedSlicesFromTheStart) {
  PrefixCounter counter;
  for (int64_t slice = 0; slice < 4; ++slice) EXPECT_EQ(counter.Issue(), slice);
  counter.Finish(2);
  counter.Finish(1);
  EXPECT_EQ(counter.done(), 0);
  EXPECT_EQ(counter.outstanding(), 2);
  counter.Finish(0);
  EXPECT_EQ(counter.done(), 3);
  EXPECT_EQ(counter.outstanding(), 1);
  counter.Finish(3);
  EXPECT_EQ(counter.done(), 4);
  EXPECT_EQ(counter.outstanding(), 0);
}

TEST(PrefixCounter, CountsAllSlicesInEveryOrderOfFinishing) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    PrefixCounter counter;
    std::vector<int64_t> slices(17);
    for (int64_t& slice : slices) slice = counter.Issue();
    std::shuffle(slices.begin(), slices.end(), random);
    std::vector<bool> finished(slices.size(), false);
    for (const int64_t slice : slices) {
      counter.Finish(slice);
      finished[static_cast<size_t>(slice)] = true;
      const auto first_open = std::find(finished.begin(), finished.end(), false);
      EXPECT_EQ(counter.done(), first_open - finished.begin());
      EXPECT_EQ(counter.outstanding(), std::count(finished.begin(), finished.end(), false));
    }
  }
}

TEST(Slicing, CutsARunIntoSlicesThatCoverItOnce) {
  for (const int64_t elements : {0, 1, 7, 8, 9, 1000}) {
    for (const int64_t slice_elements : {1, 7, 8, 1000, 5000}) {
      const Slicing slicing{elements, slice_elements};
      int64_t next = 0;
      for (int64_t slice = 0; slice < slicing.slices(); ++slice) {
        EXPECT_EQ(slicing.Begin(slice), next);
        EXPECT_GT(slicing.Length(slice), 0);
        next += slicing.Length(slice);
      }
      EXPECT_EQ(next, elements);
    }
  }
}

TEST(SliceMemory, ReusesTheSlotsOfARing) {
  std::vector<std::byte> memory(64);
  const Slicing slicing{100, 4};
  const SliceMemory whole{memory.data(), 2};
  EXPECT_EQ(whole.At(slicing, 3), memory.data() + 24);
  const SliceMemory ring{memory.data(), 2, /*ring_slices=*/3};
  EXPECT_EQ(ring.At(slicing, 3), memory.data());
  EXPECT_EQ(ring.At(slicing, 5), memory.data() + 16);
}

}  // namespace
}  // namespace weft
