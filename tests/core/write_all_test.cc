#include "weft/core/write_all.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace weft {
namespace {

// A pipe holds 64 KiB.
TEST(WriteAll, WritesMoreThanOneCallTakes) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  std::string bytes(size_t{1} << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 / 7);
  std::string arrived;
  std::thread reader([&] {
    std::array<char, 5000> block{};
    for (ssize_t got = 0; (got = read(ends[0], block.data(), block.size())) > 0;) {
      arrived.append(block.data(), static_cast<size_t>(got));
    }
  });
  EXPECT_TRUE(WriteAll(ends[1], bytes));
  close(ends[1]);
  reader.join();
  close(ends[0]);
  EXPECT_TRUE(arrived == bytes);
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
