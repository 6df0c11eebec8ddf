#include "src/train/files/transposed_runs.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

// Every range of a weight [3, 4], whose file has element (row, column) at column * 3 + row.
TEST(TransposedRuns, HaveEachElementOfARangeOnceAtItsPlaceInTheFile) {
  constexpr int64_t kRows = 3, kColumns = 4;
  for (int64_t start = 0; start <= kRows * kColumns; ++start) {
    for (int64_t count = 0; start + count <= kRows * kColumns; ++count) {
      std::vector<int64_t> places(static_cast<size_t>(count), -1);
      ASSERT_OK(ForEachTransposedRun(kRows, kColumns, start, count, [&](const TransposedRun& run) {
        for (int64_t i = 0; i < run.count; ++i) {
          int64_t& place = places.at(static_cast<size_t>(run.from + i * run.stride));
          EXPECT_EQ(place, -1);
          place = run.first + i;
        }
        return absl::OkStatus();
      }));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t element = start + i;
        EXPECT_EQ(places[static_cast<size_t>(i)], element % kColumns * kRows + element / kColumns);
      }
    }
  }
}

}  // namespace
}  // namespace weft
