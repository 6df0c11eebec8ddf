#include "src/memory/page_commit.h"

#include <unistd.h>

#include <algorithm>
#include <sys/mman.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/core/page_bytes.h"

namespace weft::internal {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

constexpr size_t kBytes = size_t{1} << 20;

// A mapping of kBytes over a file that may be shorter. Pages past the end of the file cannot be committed, as
// on a node without free memory.
class Mapping {
 public:
  explicit Mapping(size_t file_bytes) : file_(memfd_create("page_commit_test", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(file_, static_cast<off_t>(file_bytes)), 0);
    base_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    EXPECT_NE(base_, MAP_FAILED);
  }
  ~Mapping() {
    munmap(base_, kBytes);
    close(file_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* base() const { return static_cast<std::byte*>(base_); }
  size_t ResidentPages() const {
    std::vector<unsigned char> pages(kBytes / PageBytes());
    EXPECT_EQ(mincore(base_, kBytes, pages.data()), 0);
    return static_cast<size_t>(
        std::count_if(pages.begin(), pages.end(), [](auto page) { return (page & 1) != 0; }));
  }

 private:
  int file_;
  void* base_;
};

absl::StatusOr<size_t> Plenty() { return size_t{1} << 40; }

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

TEST(PageCommitter, ReturnsAnErrorWithoutMemoryAndKeepsCommittedPages) {
  const Mapping mapping(kBytes / 2);
  PageCommitter committer(mapping.base(), kBytes);
  ASSERT_OK(committer.Commit(0, kBytes / 2, Plenty));
  for (int attempt = 0; attempt < 2; ++attempt) {  // A failed chunk is not recorded as committed.
    EXPECT_THAT(committer.Commit(kBytes / 2 - 1, 2, Plenty),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory for")));
  }
  mapping.base()[kBytes / 2 - 1] = std::byte{1};
}

TEST(PageCommitter, TouchesNoPageIfTheFreeMemoryDoesNotSuffice) {
  const Mapping mapping(kBytes);
  PageCommitter committer(mapping.base(), kBytes);
  const auto little = [] { return absl::StatusOr<size_t>(PageCommitter::kMarginBytes + kBytes / 2); };
  EXPECT_THAT(committer.Commit(0, kBytes, little),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no memory for 1048576 reserved bytes: only 34078720 are free")));
  EXPECT_EQ(mapping.ResidentPages(), 0);
  EXPECT_OK(committer.Commit(0, kBytes / 2, little));
  EXPECT_OK(committer.Commit(kBytes / 2, kBytes / 2, Plenty));
}

}  // namespace
}  // namespace weft::internal
