#include "weft/core/cache_size.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace weft {
namespace {

void Describe(const TempFolder& folder, int index, const std::string& level, const std::string& type,
              const std::string& size) {
  const std::string cache = "index" + std::to_string(index) + "/";
  folder.Write(cache + "level", level + "\n");
  folder.Write(cache + "type", type + "\n");
  folder.Write(cache + "size", size + "\n");
}

TEST(CacheBytesIn, GivesTheLargestDataCacheUpToTheLevel) {
  const TempFolder folder;
  Describe(folder, 0, "1", "Data", "32K");
  Describe(folder, 1, "1", "Instruction", "64K");
  Describe(folder, 2, "2", "Unified", "1024K");
  Describe(folder, 3, "3", "Unified", "36M");
  EXPECT_EQ(CacheBytesIn(folder.str(), 1), int64_t{32} << 10);
  EXPECT_EQ(CacheBytesIn(folder.str(), 2), int64_t{1} << 20);
  EXPECT_EQ(CacheBytesIn(folder.str(), 3), int64_t{36} << 20);
  EXPECT_EQ(CacheBytesIn(folder.str(), 4), int64_t{36} << 20);
}

TEST(CacheBytesIn, IsZeroWithoutAValidDescription) {
  const TempFolder folder;
  EXPECT_EQ(CacheBytesIn(folder.str(), 3), 0);
  Describe(folder, 0, "1", "Data", "");
  Describe(folder, 1, "2", "Unified", "many");
  Describe(folder, 2, "3", "Unified", "-4K");
  EXPECT_EQ(CacheBytesIn(folder.str(), 3), 0);
}

TEST(CacheBytes, AreNotLessInTheLastLevelThanInACore) {
  EXPECT_GE(CoreCacheBytes(), int64_t{16} << 10);
  EXPECT_GE(LastLevelCacheBytes(), CoreCacheBytes());
}

}  // namespace
}  // namespace weft
