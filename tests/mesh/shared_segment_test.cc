#include "src/mesh/store/shared_segment.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <sys/syscall.h>

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/system_call_filter.h"

namespace weft::internal {
namespace {

using ::testing::ExitedWithCode;
using ::weft::testing::CanFilterSystemCalls;
using ::weft::testing::FilterSystemCall;

// Answers of a kernel to memfd_create with and without MFD_NOEXEC_SEAL: an error number, or 0 for a file.
struct Kernel {
  uint32_t with_seal;
  uint32_t without_seal;
};

// Ends the process with the code of the status.
[[noreturn]] void CreateOn(const Kernel& kernel) {
  constexpr uint32_t kNoExecSeal = 0x8;
  constexpr int kNoFilter = 100;
  const bool is_filtered =
      FilterSystemCall({SYS_memfd_create, 1, kNoExecSeal, kernel.with_seal, kernel.without_seal});
  _exit(is_filtered ? static_cast<int>(SharedSegment::Create(4096).status().code()) : kNoFilter);
}

void ExpectCode(const Kernel& kernel, absl::StatusCode code) {
  EXPECT_EXIT(CreateOn(kernel), ExitedWithCode(static_cast<int>(code)), "");
}

class SharedSegmentDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CanFilterSystemCalls()) GTEST_SKIP() << "this system does not let a process filter its system calls";
  }
};

TEST_F(SharedSegmentDeathTest, IsCreatedWhereMemoryMayNotBeExecutable) {
  ExpectCode({.with_seal = 0, .without_seal = EACCES}, absl::StatusCode::kOk);  // vm.memfd_noexec=2.
}

TEST_F(SharedSegmentDeathTest, IsCreatedByKernelsThatKnowNoSealAgainstExecution) {
  ExpectCode({.with_seal = EINVAL, .without_seal = 0}, absl::StatusCode::kOk);
}

TEST_F(SharedSegmentDeathTest, TellsAShortageFromAProhibition) {
  ExpectCode({.with_seal = ENOMEM, .without_seal = ENOMEM}, absl::StatusCode::kResourceExhausted);
  ExpectCode({.with_seal = EMFILE, .without_seal = EMFILE}, absl::StatusCode::kResourceExhausted);
  ExpectCode({.with_seal = EACCES, .without_seal = EACCES}, absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace weft::internal
