#include "weft/core/write_all.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/file_size_limit.h"

namespace weft {
namespace {

// A file that may have 100 bytes takes a part of a longer text. The next call fails.
TEST(WriteAll, GoesOnAfterACallThatWroteAPart) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    const testing::FileSizeLimit limit(100);
    EXPECT_FALSE(WriteAll(fileno(file), std::string(150, 'x')));
    EXPECT_EQ(errno, EFBIG);
  }
  EXPECT_EQ(lseek(fileno(file), 0, SEEK_END), 100);
  std::fclose(file);
}

TEST(WriteAll, WritesAllBytes) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  EXPECT_TRUE(WriteAll(fileno(file), "weft"));
  std::array<char, 8> bytes{};
  EXPECT_EQ(pread(fileno(file), bytes.data(), bytes.size(), 0), 4);
  EXPECT_STREQ(bytes.data(), "weft");
  std::fclose(file);
}

TEST(WriteAll, ReturnsFalseWithTheErrorOfTheSystem) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  errno = 0;
  EXPECT_FALSE(WriteAll(full, "text"));
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_TRUE(WriteAll(full, ""));
  close(full);
}

}  // namespace
}  // namespace weft
