#include "src/memory/page_commit.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/shared_mapping.h"
#include "tests/support/status_matchers.h"
#include "tests/support/system_call_filter.h"
#include "weft/core/huge_pages.h"
#include "weft/core/page_bytes.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

using ::testing::AllOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::weft::testing::CanFilterSystemCalls;
using ::weft::testing::CollapsesSharedMemory;
using ::weft::testing::FilterSystemCall;
using ::weft::testing::SharedMapping;
using ::weft::testing::StatusIs;

constexpr size_t kBytes = size_t{1} << 20;

// Pages past the end of the file cannot be committed, as on a node without free memory.
class Mapping : public SharedMapping {
 public:
  explicit Mapping(size_t file_bytes, size_t bytes = kBytes) : SharedMapping(bytes, file_bytes) {}

  size_t ResidentPages() const { return ResidentPages(0, bytes()); }
  size_t ResidentPages(size_t offset, size_t bytes) const {
    std::vector<unsigned char> pages(bytes / PageBytes());
    EXPECT_EQ(mincore(base() + offset, bytes, pages.data()), 0);
    return static_cast<size_t>(
        std::count_if(pages.begin(), pages.end(), [](auto page) { return (page & 1) != 0; }));
  }
  // Bytes that are mapped by huge pages.
  size_t HugeBytes() const {
    std::ifstream file("/proc/self/smaps");
    bool is_found = false;
    for (std::string line; std::getline(file, line);) {
      uintptr_t begin = 0;
      size_t kilobytes = 0;
      if (std::sscanf(line.c_str(), "%" SCNxPTR "-", &begin) == 1 && line.find('-') < line.find(' ')) {
        is_found = begin == reinterpret_cast<uintptr_t>(base());
      } else if (is_found && std::sscanf(line.c_str(), "ShmemPmdMapped: %zu kB", &kilobytes) == 1) {
        return kilobytes * 1024;
      }
    }
    return 0;
  }
};

absl::StatusOr<FreeMemory> Plenty() { return FreeMemory{.host = size_t{1} << 40}; }

TEST(PageCommitter, CommitsTheRequestedRangeAndKeepsItsContents) {
  const Mapping mapping(kBytes);
  std::byte* segment = mapping.base() + 64;  // A segment may start inside a page.
  PageCommitter committer(segment, kBytes - 64);
  EXPECT_EQ(mapping.ResidentPages(), 0);
  ASSERT_OK(committer.Commit(5, 1, Plenty));
  const size_t few = mapping.ResidentPages();
  EXPECT_GT(few, 0);
  EXPECT_LT(few, kBytes / 4096);
  segment[5] = std::byte{42};
  ASSERT_OK(committer.Commit(0, kBytes - 64, Plenty));
  EXPECT_EQ(mapping.ResidentPages(), kBytes / PageBytes());
  EXPECT_EQ(segment[5], std::byte{42});
}

// They may become huge pages, and so may the page that a write beyond them touches.
TEST(PageCommitter, CommitsManyPagesAndNoneBeyondThem) {
  constexpr size_t kLarge = 16 * kBytes;
  const Mapping mapping(kLarge, kLarge);
  PageCommitter committer(mapping.base(), kLarge);
  mapping.base()[kBytes] = mapping.base()[9 * kBytes] = std::byte{42};
  ASSERT_OK(committer.Commit(kBytes, 8 * kBytes, Plenty));
  EXPECT_EQ(mapping.ResidentPages(kBytes, 8 * kBytes), 8 * kBytes / PageBytes());
  EXPECT_EQ(mapping.ResidentPages(10 * kBytes, 6 * kBytes), 0);
  EXPECT_EQ(mapping.base()[kBytes], std::byte{42});
  EXPECT_EQ(mapping.base()[kBytes + 1], std::byte{0});
  EXPECT_EQ(mapping.base()[9 * kBytes], std::byte{42});
}

TEST(PageCommitter, CommitsHugePagesWhereTheKernelMakesThem) {
  if (!CollapsesSharedMemory()) GTEST_SKIP() << "this kernel makes no huge pages of shared memory";
  const size_t huge = HugePageBytes();
  const Mapping mapping(4 * huge, 4 * huge);
  PageCommitter committer(mapping.base(), 4 * huge);
  ASSERT_OK(committer.Commit(huge, 2 * huge, Plenty));
  EXPECT_EQ(mapping.HugeBytes(), 2 * huge);
}

TEST(PageCommitter, ReturnsAnErrorWithoutMemoryAndKeepsCommittedPages) {
  const Mapping mapping(kBytes / 2);
  PageCommitter committer(mapping.base(), kBytes);
  ASSERT_OK(committer.Commit(0, kBytes / 2, Plenty));
  for (int attempt = 0; attempt < 2; ++attempt) {  // A failed chunk is not recorded as committed.
    EXPECT_THAT(committer.Commit(kBytes / 2 - 1, 2, Plenty),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("no memory for 262144 reserved bytes: their file system is full")));
  }
  mapping.base()[kBytes / 2 - 1] = std::byte{1};
}

TEST(PageCommitter, TouchesNoPageIfTheFreeMemoryDoesNotSuffice) {
  const Mapping mapping(kBytes);
  PageCommitter committer(mapping.base(), kBytes);
  const auto little = []() -> absl::StatusOr<FreeMemory> {
    return FreeMemory{.host = PageCommitter::kMarginBytes + kBytes / 2};
  };
  EXPECT_THAT(committer.Commit(0, kBytes, little),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("no memory for 1048576 reserved bytes: only 524288 are left"),
                             HasSubstr("the memory of the host, or of its control group, limits it"))));
  EXPECT_EQ(mapping.ResidentPages(), 0);
  EXPECT_OK(committer.Commit(0, kBytes / 2, little));
  EXPECT_OK(committer.Commit(kBytes / 2, kBytes / 2, Plenty));
}

// The margin keeps a process from the OOM killer, which does not watch file systems.
TEST(PageCommitter, TakesAFileSystemWithoutAMargin) {
  const Mapping mapping(kBytes);
  PageCommitter committer(mapping.base(), kBytes);
  const auto small = []() -> absl::StatusOr<FreeMemory> {
    return FreeMemory{.host = size_t{1} << 40, .file_system = kBytes / 2};
  };
  EXPECT_OK(committer.Commit(0, kBytes / 4, small));
  // Other ranks take of it, too, so it is read again.
  const auto full = []() -> absl::StatusOr<FreeMemory> {
    return FreeMemory{.host = size_t{1} << 40, .file_system = 0};
  };
  EXPECT_THAT(committer.Commit(kBytes / 4, kBytes / 4, full),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("only 0 are left"), HasSubstr("the file system /dev/shm limits it"))));
  EXPECT_OK(committer.Commit(kBytes / 4, kBytes / 4, small));
}

// The file has half of the pages that the mapping has: to touch another one ends the process.
absl::Status CommitMoreThanTheFileSystemHas() {
  const Mapping mapping(kBytes / 2);
  PageCommitter committer(mapping.base(), kBytes);
  const auto beside_margin = [](size_t bytes) {
    return [bytes]() -> absl::StatusOr<FreeMemory> {
      return FreeMemory{.host = size_t{1} << 40, .file_system = PageCommitter::kMarginBytes + bytes};
    };
  };
  WEFT_RETURN_IF_ERROR(committer.Commit(0, kBytes / 2, beside_margin(kBytes / 2)));
  EXPECT_EQ(mapping.ResidentPages(0, kBytes / 2), kBytes / 2 / PageBytes());
  return committer.Commit(kBytes / 2, kBytes / 2, beside_margin(0));
}

[[noreturn]] void CommitOnAnOldKernel() {
  // EINVAL for MADV_POPULATE_WRITE and for all advice that has this bit.
  constexpr uint32_t kRecentAdvice = 0x10;
  if (!FilterSystemCall({SYS_madvise, 2, kRecentAdvice, EINVAL, 0})) _exit(100);
  const absl::Status status = CommitMoreThanTheFileSystemHas();
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  _exit(::testing::Test::HasFailure() ? 101 : static_cast<int>(status.code()));
}

TEST(PageCommitterDeathTest, LeavesAMarginOfTheFileSystemOnKernelsThatDoNotRefusePages) {
  if (!CanFilterSystemCalls()) GTEST_SKIP() << "this system does not let a process filter its system calls";
  EXPECT_EXIT(CommitOnAnOldKernel(), ExitedWithCode(static_cast<int>(absl::StatusCode::kResourceExhausted)),
              "only 0 are left, besides 33554432 of the host and of the file system that stay free");
}

TEST(PageCommitter, NeedsNoFreeAddressesAndNoLargerFiles) {
  const Mapping mapping(kBytes);
  PageCommitter committer(mapping.base(), kBytes);
  EXPECT_OK(committer.Commit(0, kBytes, []() -> absl::StatusOr<FreeMemory> {
    return FreeMemory{.host = size_t{1} << 40, .file_sizes = 0, .address_space = 0};
  }));
}

}  // namespace
}  // namespace weft::internal
