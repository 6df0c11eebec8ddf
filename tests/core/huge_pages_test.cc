#include "weft/core/huge_pages.h"

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/shared_mapping.h"
#include "weft/core/page_bytes.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::CollapsesSharedMemory;
using ::weft::testing::SharedMapping;

class HugePages : public ::testing::Test {
 protected:
  void SetUp() override {
    if (HugePageBytes() == 0) GTEST_SKIP() << "this kernel has no transparent huge pages";
  }
};

uintptr_t Address(const std::byte* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// One flag for each page of a range: true if it is resident.
std::vector<bool> Resident(std::byte* begin, size_t bytes) {
  std::vector<unsigned char> pages(bytes / PageBytes());
  EXPECT_EQ(mincore(begin, bytes, pages.data()), 0);
  std::vector<bool> resident;
  for (const unsigned char page : pages) resident.push_back((page & 1) != 0);
  return resident;
}

// The flags of the mapping at an address, as the kernel lists them.
std::string FlagsAt(const std::byte* address) {
  std::ifstream file("/proc/self/smaps");
  bool is_found = false;
  for (std::string line; std::getline(file, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      is_found = begin <= Address(address) && Address(address) < end;
    } else if (is_found && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

TEST_F(HugePages, AreAlignedToThePlaceOfAnOffset) {
  const size_t huge = HugePageBytes();
  EXPECT_EQ(huge & (huge - 1), 0);
  EXPECT_GT(huge, PageBytes());
  std::byte* const block = ReserveAddresses(3 * huge, 0);
  for (const size_t start : {size_t{0}, size_t{1}, huge - 1}) {
    for (const size_t offset : {size_t{0}, PageBytes(), huge - 1, 5 * huge + 7}) {
      std::byte* const aligned = AlignToHugePage(block + start, offset);
      EXPECT_EQ(Address(aligned) % huge, offset % huge);
      EXPECT_GE(aligned, block + start);
      EXPECT_LT(aligned, block + start + huge);
    }
  }
  munmap(block, 3 * huge);
}

TEST_F(HugePages, ReservedAddressesHaveThePlaceOfTheFile) {
  for (const size_t offset : {size_t{0}, PageBytes(), HugePageBytes() - PageBytes()}) {
    for (const size_t bytes : {size_t{1}, PageBytes(), 2 * HugePageBytes() + 1}) {
      std::byte* const base = ReserveAddresses(bytes, offset);
      ASSERT_NE(base, nullptr);
      EXPECT_EQ(Address(base) % HugePageBytes(), offset % HugePageBytes());
      // MAP_FIXED_NOREPLACE fails on addresses that are reserved.
      EXPECT_EQ(mmap(base + (bytes - 1) / PageBytes() * PageBytes(), PageBytes(), PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
                MAP_FAILED);
      munmap(base, bytes);
    }
  }
}

TEST_F(HugePages, ThatLieWhollyInPrivateMemoryAreAdvised) {
  const size_t huge = HugePageBytes();
  const size_t bytes = 4 * huge;
  std::byte* const base = ReserveAddresses(bytes, 0);
  ASSERT_EQ(mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), base);
  AdviseHugePages(base + 1, 3 * huge - 2);
  EXPECT_THAT(FlagsAt(base), Not(HasSubstr(" hg ")));
  EXPECT_THAT(FlagsAt(base + huge), HasSubstr(" hg "));
  EXPECT_THAT(FlagsAt(base + 2 * huge), Not(HasSubstr(" hg ")));
  AdviseHugePages(base + 3 * huge + 1, huge - 1);  // There is none.
  EXPECT_THAT(FlagsAt(base + 3 * huge), Not(HasSubstr(" hg ")));
  munmap(base, bytes);
}

TEST_F(HugePages, OfSharedMemoryArePopulatedWithoutAChangeOfContents) {
  const size_t huge = HugePageBytes();
  const SharedMapping mapping(4 * huge);
  std::byte* const base = mapping.base();
  base[huge + 5] = base[3 * huge - 1] = std::byte{42};
  PopulateHugePages(base + 1, 3 * huge);
  EXPECT_EQ(base[huge + 5], std::byte{42});
  EXPECT_EQ(base[3 * huge - 1], std::byte{42});
  EXPECT_EQ(base[huge + 6], std::byte{0});
  const std::vector<bool> resident = Resident(base, mapping.bytes());
  const size_t pages = huge / PageBytes();
  const bool collapses = CollapsesSharedMemory();
  for (size_t page = 0; page < resident.size(); ++page) {
    const bool is_inside = page >= pages && page < 3 * pages;
    if (!is_inside) {
      EXPECT_FALSE(resident[page]) << page;
    } else if (collapses || page % pages == 0) {
      EXPECT_TRUE(resident[page]) << page;
    }
  }
}

TEST_F(HugePages, AreLeftOutWhereTheFileEnds) {
  const size_t huge = HugePageBytes();
  const SharedMapping mapping(2 * huge, /*file_bytes=*/huge);
  std::byte* const base = mapping.base();
  PopulateHugePages(base, 2 * huge);  // A write to the second one would end the program.
  EXPECT_TRUE(Resident(base, huge).front());
}

}  // namespace
}  // namespace weft
