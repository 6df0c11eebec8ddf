// Faults of one rank, injected by LD_PRELOAD into a program that knows nothing of them.
//
//   FAULT_RANK=1 FAULT=<what>@<call>[:<number>[:once]] [FAULT_PATH=<part of a path>] [FAULT_FIRED=<file>]
//     LD_PRELOAD=fault_shim.so PROGRAM
//
// <call>: MPI_Init_thread, MPI_Finalize, dnnl_sgemm; open, read (also pread), write (also pwrite, but not fwrite), fsync,
//   rename, truncate (also fallocate), close, of files whose path contains FAULT_PATH.
// <number>: the call at which the fault happens, from 1 (the default). Faults of files happen at that call and, without
//   "once", at all later ones.
// <what>: hang, kill, segv, stop, exit0, exit1, slow (sleeps FAULT_SECONDS), nan (the result of dnnl_sgemm), short (half of the
//   bytes), or the name of an errno: EIO, ENOSPC, EACCES, EROFS.
// FAULT_FIRED: a file that exists once the fault has happened.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static char fault_what[32];
static char fault_call[32];
static long fault_number = 1;
static bool fault_once;
static bool fault_here;

__attribute__((constructor)) static void ReadEnvironment(void) {
  const char* fault = getenv("FAULT");
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  const char* faulty = getenv("FAULT_RANK");
  if (fault == NULL || faulty == NULL) return;
  char once[8] = "";
  const int fields = sscanf(fault, "%31[^@]@%31[^:]:%ld:%7s", fault_what, fault_call, &fault_number, once);
  if (fields < 2) {
    fprintf(stderr, "fault_shim: FAULT is '%s', expected <what>@<call>[:<number>[:once]]\n", fault);
    abort();
  }
  fault_once = strcmp(once, "once") == 0;
  fault_here = strcmp(rank == NULL ? "0" : rank, faulty) == 0;
}

static int ErrnoOf(const char* name) {
  if (strcmp(name, "EIO") == 0) return EIO;
  if (strcmp(name, "ENOSPC") == 0) return ENOSPC;
  if (strcmp(name, "EACCES") == 0) return EACCES;
  if (strcmp(name, "EROFS") == 0) return EROFS;
  return 0;
}

static void ReportFault(void) {
  const char* file = getenv("FAULT_FIRED");
  if (file == NULL) return;
  // A system call, because open and close of this library may have the fault.
  const long created = syscall(SYS_openat, AT_FDCWD, file, O_CREAT | O_WRONLY, 0600);
  if (created >= 0) syscall(SYS_close, created);
}

// Counts the call. True if the fault happens at this call, or happened at an earlier one.
static bool IsFaulty(const char* call, bool repeats) {
  static atomic_long calls;
  if (!fault_here || strcmp(call, fault_call) != 0) return false;
  const long count = atomic_fetch_add(&calls, 1) + 1;
  const bool faulty = repeats ? count >= fault_number : count == fault_number;
  if (faulty) ReportFault();
  return faulty;
}

// Faults that end or stop the process or the thread.
static void Act(void) {
  if (strcmp(fault_what, "hang") == 0) {
    for (;;) pause();
  }
  if (strcmp(fault_what, "slow") == 0) {
    const char* seconds = getenv("FAULT_SECONDS");
    usleep((useconds_t)(1e6 * atof(seconds == NULL ? "1" : seconds)));
  }
  if (strcmp(fault_what, "kill") == 0) raise(SIGKILL);
  if (strcmp(fault_what, "stop") == 0) kill(getpid(), SIGSTOP);
  if (strcmp(fault_what, "segv") == 0) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
  if (strcmp(fault_what, "exit0") == 0) _exit(0);
  if (strcmp(fault_what, "exit1") == 0) _exit(1);
}

static bool PathMatches(const char* path) {
  const char* part = getenv("FAULT_PATH");
  return path != NULL && (part == NULL || strstr(path, part) != NULL);
}

static bool FileMatches(int file) {
  char link[64];
  char path[PATH_MAX];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length < 0) return false;
  path[length] = '\0';
  return PathMatches(path);
}

// The fault of a call on a file: an errno to fail with, or 0.
static int FileFault(const char* call, bool matches) {
  if (!matches || !IsFaulty(call, !fault_once)) return 0;
  Act();
  return ErrnoOf(fault_what);
}

static size_t Shortened(size_t bytes) { return strcmp(fault_what, "short") == 0 ? (bytes + 1) / 2 : bytes; }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_IF(fault)   \
  do {                   \
    const int e = fault; \
    if (e != 0) {        \
      errno = e;         \
      return -1;         \
    }                    \
  } while (0)

static int OpenWith(const char* symbol, int folder, const char* path, int flags, mode_t mode) {
  FAIL_IF(FileFault("open", PathMatches(path)));
  if (strstr(symbol, "openat") != NULL) {
    int (*real)(int, const char*, int, ...) = (int (*)(int, const char*, int, ...))dlsym(RTLD_NEXT, symbol);
    return real(folder, path, flags, mode);
  }
  int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, symbol);
  return real(path, flags, mode);
}

static mode_t ModeOf(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

#define DEFINE_OPEN(name)                             \
  int name(const char* path, int flags, ...) {        \
    va_list arguments;                                \
    va_start(arguments, flags);                       \
    const mode_t mode = ModeOf(flags, arguments);     \
    va_end(arguments);                                \
    return OpenWith(#name, AT_FDCWD, path, flags, mode); \
  }
#define DEFINE_OPENAT(name)                                      \
  int name(int folder, const char* path, int flags, ...) {       \
    va_list arguments;                                           \
    va_start(arguments, flags);                                  \
    const mode_t mode = ModeOf(flags, arguments);                \
    va_end(arguments);                                           \
    return OpenWith(#name, folder, path, flags, mode);           \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

ssize_t read(int file, void* data, size_t bytes) {
  FAIL_IF(FileFault("read", FileMatches(file)));
  return REAL(read)(file, data, bytes);
}

#define DEFINE_PREAD(name)                                               \
  ssize_t name(int file, void* data, size_t bytes, off_t offset) {       \
    FAIL_IF(FileFault("read", FileMatches(file)));                       \
    return REAL(name)(file, data, bytes, offset);                        \
  }
DEFINE_PREAD(pread)
DEFINE_PREAD(pread64)

ssize_t write(int file, const void* data, size_t bytes) {
  const bool matches = fault_here && FileMatches(file);
  FAIL_IF(FileFault("write", matches));
  return REAL(write)(file, data, matches ? Shortened(bytes) : bytes);
}

#define DEFINE_PWRITE(name)                                                            \
  ssize_t name(int file, const void* data, size_t bytes, off_t offset) {               \
    const bool matches = fault_here && FileMatches(file);                              \
    FAIL_IF(FileFault("write", matches));                                              \
    return REAL(name)(file, data, matches ? Shortened(bytes) : bytes, offset);         \
  }
DEFINE_PWRITE(pwrite)
DEFINE_PWRITE(pwrite64)

int fsync(int file) {
  FAIL_IF(FileFault("fsync", FileMatches(file)));
  return REAL(fsync)(file);
}

#define DEFINE_TRUNCATE(name)                            \
  int name(int file, off_t bytes) {                      \
    FAIL_IF(FileFault("truncate", FileMatches(file)));   \
    return REAL(name)(file, bytes);                      \
  }
DEFINE_TRUNCATE(ftruncate)
DEFINE_TRUNCATE(ftruncate64)

#define DEFINE_FALLOCATE(name)                                  \
  int name(int file, int mode, off_t offset, off_t bytes) {     \
    FAIL_IF(FileFault("truncate", FileMatches(file)));          \
    return REAL(name)(file, mode, offset, bytes);               \
  }
DEFINE_FALLOCATE(fallocate)
DEFINE_FALLOCATE(fallocate64)

int rename(const char* from, const char* to) {
  FAIL_IF(FileFault("rename", PathMatches(from) || PathMatches(to)));
  return REAL(rename)(from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  FAIL_IF(FileFault("rename", PathMatches(from) || PathMatches(to)));
  int (*real)(int, const char*, int, const char*, unsigned) =
      (int (*)(int, const char*, int, const char*, unsigned))dlsym(RTLD_NEXT, "renameat2");
  return real(from_folder, from, to_folder, to, flags);
}

int close(int file) {
  const int fault = FileFault("close", fault_here && FileMatches(file));
  const int closed = REAL(close)(file);
  if (fault == 0) return closed;
  errno = fault;
  return -1;
}

// Calls of the libraries. Their types do not matter here.
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  if (IsFaulty("MPI_Init_thread", false)) Act();
  int (*real)(int*, char***, int, int*) = (int (*)(int*, char***, int, int*))dlsym(RTLD_NEXT, "MPI_Init_thread");
  return real(argc, argv, required, provided);
}

int MPI_Finalize(void) {
  if (IsFaulty("MPI_Finalize", false)) Act();
  int (*real)(void) = (int (*)(void))dlsym(RTLD_NEXT, "MPI_Finalize");
  return real();
}

int dnnl_sgemm(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
               const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  typedef int (*Sgemm)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t, float,
                       float*, int64_t);
  static _Atomic(Sgemm) real;
  if (atomic_load(&real) == NULL) atomic_store(&real, (Sgemm)dlsym(RTLD_NEXT, "dnnl_sgemm"));
  const int status = atomic_load(&real)(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  if (IsFaulty("dnnl_sgemm", false)) {
    Act();
    if (strcmp(fault_what, "nan") == 0) c[0] = NAN;
  }
  return status;
}
