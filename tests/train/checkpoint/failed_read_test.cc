// Reads of checkpoints that the device or the file server fails: the files may be whole.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <sys/syscall.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/test_timeout.h"
#include "tests/train/checkpoint/checkpoint_fixture.h"

namespace {

std::atomic<int> reads_before_error = 0;  // Counts down. The read that makes it 0 fails.
std::atomic<int> read_error = 0;

}  // namespace

// Replaces the function of the C library.
extern "C" ssize_t pread(int file, void* data, size_t bytes, off_t offset) {
  if (reads_before_error > 0 && --reads_before_error == 0) {
    errno = read_error;
    return -1;
  }
  return syscall(SYS_pread64, file, data, bytes, offset);
}

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::kTestTimeout;
using ::weft::testing::StatusIs;

class FailedReadTest : public CheckpointTest {
 protected:
  ~FailedReadTest() override { reads_before_error = 0; }

  // Chooses a checkpoint while the read of this number fails.
  absl::Status FindWithError(int number, int error) {
    read_error = error;
    reads_before_error = number;
    return OnRanks(1, [&](Bootstrap& bootstrap) -> absl::Status {
      skipped_.clear();
      WEFT_ASSIGN_OR_RETURN(found_, FindCheckpoint(bootstrap, root(), skipped_, kTestTimeout));
      return absl::OkStatus();
    });
  }

  std::vector<SkippedCheckpoint> skipped_;
  std::string found_;
};

TEST_F(FailedReadTest, PassesOverNoCheckpoint) {
  ASSERT_OK(Save(ArrayCut::kByRows, 1, {1, 2}));
  int failed = 0;
  for (;;) {
    const absl::Status status = FindWithError(failed + 1, EIO);
    EXPECT_THAT(skipped_, IsEmpty());
    if (reads_before_error > 0) {
      EXPECT_OK(status);
      break;
    }
    ++failed;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("Input/output error"))) << failed;
  }
  EXPECT_EQ(found_, Path(2));
  EXPECT_GT(failed, 4);  // Reads of `latest`, the manifest, and the header and the ranges of two files.
}

TEST_F(FailedReadTest, NamesTheFileAndTheRemedy) {
  ASSERT_OK(Save(ArrayCut::kByRows, 1, {1, 2}));
  for (const int error : {EIO, ESTALE, ETIMEDOUT}) {
    EXPECT_THAT(FindWithError(2, error),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("cannot use '" + Path(2) + "', which may be whole; mend the cause"),
                               HasSubstr("cannot read '" + Path(2) + "/checkpoint.json'"))));
  }
}

}  // namespace
}  // namespace weft
