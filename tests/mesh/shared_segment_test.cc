#include "src/mesh/store/shared_segment.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::internal {
namespace {

using ::testing::ExitedWithCode;

// Answers of a kernel to memfd_create with and without MFD_NOEXEC_SEAL: an error number, or 0 for a file.
struct Kernel {
  uint32_t with_seal;
  uint32_t without_seal;
};

// Gives this process the answers of `kernel`, until it ends.
bool Emulate(const Kernel& kernel) {
  constexpr uint32_t kNoExecSeal = 0x8;
  const auto answer = [](uint32_t error) -> sock_filter {
    return BPF_STMT(BPF_RET | BPF_K, error == 0 ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | error);
  };
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kNoExecSeal, 0, 1),
      answer(kernel.with_seal),
      answer(kernel.without_seal),
  };
  const sock_fprog program = {std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Ends the process with the code of the status.
[[noreturn]] void CreateOn(const Kernel& kernel) {
  constexpr int kNoFilter = 100;
  _exit(Emulate(kernel) ? static_cast<int>(SharedSegment::Create(4096).status().code()) : kNoFilter);
}

void ExpectCode(const Kernel& kernel, absl::StatusCode code) {
  EXPECT_EXIT(CreateOn(kernel), ExitedWithCode(static_cast<int>(code)), "");
}

TEST(SharedSegmentDeathTest, IsCreatedWhereMemoryMayNotBeExecutable) {
  ExpectCode({.with_seal = 0, .without_seal = EACCES}, absl::StatusCode::kOk);  // vm.memfd_noexec=2.
}

TEST(SharedSegmentDeathTest, IsCreatedByKernelsThatKnowNoSealAgainstExecution) {
  ExpectCode({.with_seal = EINVAL, .without_seal = 0}, absl::StatusCode::kOk);
}

TEST(SharedSegmentDeathTest, TellsAShortageFromAProhibition) {
  ExpectCode({.with_seal = ENOMEM, .without_seal = ENOMEM}, absl::StatusCode::kResourceExhausted);
  ExpectCode({.with_seal = EMFILE, .without_seal = EMFILE}, absl::StatusCode::kResourceExhausted);
  ExpectCode({.with_seal = EACCES, .without_seal = EACCES}, absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace weft::internal
