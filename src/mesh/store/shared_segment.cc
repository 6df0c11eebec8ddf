#include "src/mesh/store/shared_segment.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <climits>

#include "src/mesh/base/identities.h"
#include "weft/core/huge_pages.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// The error of a refused system call, by errno.
absl::Status Refused(std::string_view action, size_t bytes) {
  constexpr int kShortages[] = {EAGAIN, EFBIG, EMFILE, ENFILE, ENOMEM, ENOSPC};
  const int error = errno;
  const bool is_shortage =
      std::find(std::begin(kShortages), std::end(kShortages), error) != std::end(kShortages);
  return absl::Status(
      is_shortage ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kFailedPrecondition,
      absl::StrCat(
          "the kernel refused to ", ToAbsl(action), " ", bytes,
          " bytes of node memory: ", std::strerror(error),
          is_shortage
              ? ""
              : ": ranks of one node share memory by memfd_create and mmap, which the host must allow"));
}

// A file of memory. It can never be executed, as hosts with vm.memfd_noexec=2 demand.
FileHandle OpenMemoryFile(const std::string& name) {
  constexpr unsigned kNoExecSeal = 0x8;  // MFD_NOEXEC_SEAL, which older headers do not have.
  FileHandle file(memfd_create(name.c_str(), MFD_CLOEXEC | kNoExecSeal));
  if (file.is_open() || errno != EINVAL) return file;
  return FileHandle(memfd_create(name.c_str(), MFD_CLOEXEC));  // Linux before 6.3.
}

absl::Status NotShared(std::string_view reason) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot open the node memory of another rank: ", ToAbsl(reason),
                   ". Ranks of one node must be processes of one user that see each other in /proc. If they "
                   "are on different hosts or in different containers, give each of these its own name in "
                   "WEFT_NODE_ID"));
}

}  // namespace

absl::StatusOr<SharedSegment> SharedSegment::Create(size_t bytes) {
  std::string name = absl::StrCat("weft-", RandomToken());
  FileHandle file = OpenMemoryFile(name);
  const size_t mapped = std::max<size_t>(bytes, 1);
  if (!file.is_open() || ftruncate(file.get(), static_cast<off_t>(mapped)) != 0) {
    return Refused("create", bytes);
  }
  return MapFile(std::move(file), std::move(name), mapped);
}

absl::StatusOr<SharedSegment> SharedSegment::Map(std::string_view handle, size_t bytes) {
  const std::vector<std::string> words = absl::StrSplit(ToAbsl(handle), ' ');
  if (words.size() != 3) return NotShared(absl::StrCat("'", ToAbsl(handle), "' is no handle of node memory"));
  const std::string path = absl::StrCat("/proc/", words[0], "/fd/", words[1]);
  std::array<char, PATH_MAX> target = {};
  if (readlink(path.c_str(), target.data(), target.size() - 1) < 0) {
    return NotShared(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (!absl::StrContains(target.data(), words[2])) return NotShared(absl::StrCat(path, " is another file"));
  FileHandle file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.is_open()) return NotShared(absl::StrCat(path, ": ", std::strerror(errno)));
  WEFT_ASSIGN_OR_RETURN(SharedSegment segment,
                        MapFile(std::move(file), words[2], std::max<size_t>(bytes, 1)));
  segment.Seal();
  return segment;
}

absl::StatusOr<SharedSegment> SharedSegment::MapFile(FileHandle file, std::string name, size_t bytes) {
  std::byte* const reserved = ReserveAddresses(bytes, /*offset=*/0);
  if (reserved == nullptr) return Refused("map", bytes);
  // Do not reserve swap space: pages are committed later, with a check.
  void* base =
      mmap(reserved, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file.get(),
           /*offset=*/0);
  if (base == MAP_FAILED) {
    const absl::Status failure = Refused("map", bytes);
    munmap(reserved, bytes);
    return failure;
  }
  return SharedSegment(std::move(file), std::move(name), static_cast<std::byte*>(base), bytes);
}

std::string SharedSegment::handle() const { return absl::StrCat(getpid(), " ", file_.get(), " ", name_); }

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : file_(std::move(other.file_)),
      name_(std::move(other.name_)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(name_, other.name_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedSegment::~SharedSegment() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

}  // namespace weft::internal
