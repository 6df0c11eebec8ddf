#include "src/mesh/mpi/second_mapping.h"

#include <unistd.h>

#include <cstdint>
#include <optional>
#include <sys/mman.h>
#include <utility>

#include <gtest/gtest.h>

#include "weft/core/huge_pages.h"
#include "weft/core/page_bytes.h"

namespace weft::internal {
namespace {

// A file of two huge pages, mapped at an address that is `shift` pages off the place in a huge page.
class SecondMappingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (HugePageBytes() == 0) GTEST_SKIP() << "this kernel has no transparent huge pages";
    bytes_ = 2 * HugePageBytes();
    file_ = memfd_create("second_mapping_test", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(file_, static_cast<off_t>(bytes_)), 0);
  }
  void TearDown() override {
    if (base_ != nullptr) munmap(base_, bytes_);
    if (file_ >= 0) close(file_);
  }

  void Map(size_t shift, int sharing = MAP_SHARED) {
    base_ = ReserveAddresses(bytes_, shift * PageBytes());
    ASSERT_EQ(mmap(base_, bytes_, PROT_READ | PROT_WRITE, sharing | MAP_FIXED, file_, 0), base_);
  }

  size_t bytes_ = 0;
  int file_ = -1;
  std::byte* base_ = nullptr;
};

TEST_F(SecondMappingTest, HasThePagesAtAddressesWhereHugePagesFit) {
  Map(3);
  std::byte* const begin = base_ + PageBytes() + 8;
  std::optional<SecondMapping> second = SecondMapping::ForHugePages(begin, base_ + bytes_);
  ASSERT_TRUE(second);
  SecondMapping moved = *std::move(second);
  std::byte* const there = moved.At(begin);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(there) % HugePageBytes(), PageBytes() + 8);
  *begin = std::byte{7};
  EXPECT_EQ(*there, std::byte{7});
  *moved.At(base_ + bytes_ - 1) = std::byte{9};
  EXPECT_EQ(base_[bytes_ - 1], std::byte{9});
}

TEST_F(SecondMappingTest, EndsWithoutTheFirst) {
  Map(3);
  std::byte* there = nullptr;
  {
    const std::optional<SecondMapping> second = SecondMapping::ForHugePages(base_, base_ + bytes_);
    ASSERT_TRUE(second);
    there = second->At(base_);
    *there = std::byte{5};
  }
  EXPECT_EQ(*base_, std::byte{5});
  unsigned char page = 0;
  EXPECT_EQ(mincore(there, 1, &page), -1);  // Nothing is mapped there.
}

TEST_F(SecondMappingTest, IsNotMadeWhereHugePagesFit) {
  Map(0);
  EXPECT_FALSE(SecondMapping::ForHugePages(base_, base_ + bytes_));
}

TEST_F(SecondMappingTest, IsNotMadeOfPrivateMemory) {
  Map(3, MAP_PRIVATE);
  EXPECT_FALSE(SecondMapping::ForHugePages(base_, base_ + bytes_));
}

TEST_F(SecondMappingTest, IsNotMadeBeyondAMapping) {
  Map(3);
  EXPECT_FALSE(SecondMapping::ForHugePages(base_, base_ + bytes_ + 1));
}

}  // namespace
}  // namespace weft::internal
