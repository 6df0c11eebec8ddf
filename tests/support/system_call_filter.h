// Seccomp filters for tests in child processes: they answer a system call as another kernel would.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

namespace weft::testing {

// Answers to a system call: an error number, or 0 for the answer of this kernel.
struct SystemCallAnswers {
  uint32_t call;      // SYS_…
  uint32_t argument;  // Index of the argument that decides.
  uint32_t bits;      // Bits of that argument.
  uint32_t with;      // Answer if one of the bits is set.
  uint32_t without;   // Answer if none is.
};

// Gives this process the answers, until it ends. False: this system does not let a process filter its calls.
inline bool FilterSystemCall(const SystemCallAnswers& answers) {
  const auto answer = [](uint32_t error) -> sock_filter {
    return BPF_STMT(BPF_RET | BPF_K, error == 0 ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | error);
  };
  const auto argument = static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * answers.argument);
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, answers.call, 1, 0),
      answer(0),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, answers.bits, 0, 1),
      answer(answers.with),
      answer(answers.without),
  };
  const sock_fprog program = {std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// True if a process may filter its system calls: some kernels and sandboxes do not let it.
inline bool CanFilterSystemCalls() {
  const pid_t child = fork();
  if (child == 0) _exit(FilterSystemCall({SYS_memfd_create, 1, 0, 0, 0}) ? 0 : 1);
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace weft::testing
