#include "weft/core/utf8.h"

#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(TruncateUtf8, EndsWithAWholeCharacter) {
  const std::string text = "a\u00E9\u20AC\U0001F600z";  // Characters of 1, 2, 3, 4 and 1 bytes.
  const size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  for (size_t bytes = 0; bytes < std::size(ends); ++bytes)
    EXPECT_EQ(TruncateUtf8(text, bytes), text.substr(0, ends[bytes])) << bytes;
}

TEST(TruncateUtf8, CutsOtherTextCloseToTheLimit) {
  const std::string text(100, '\x80');
  EXPECT_EQ(TruncateUtf8(text, 50).size(), 47U);
}

}  // namespace
}  // namespace weft
