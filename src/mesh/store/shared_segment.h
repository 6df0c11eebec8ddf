// Memory that the processes of a node share, without a name in a file system.
//
// Note [Memory without a name]
// Problem: a file in /dev/shm stays behind, with its memory, if all ranks are killed between its creation and
//   its removal. Containers also often limit /dev/shm to 64 MiB.
// Rule: the owner of a segment creates it by memfd_create. Peers open it through /proc/<owner>/fd while the
//   owner keeps its descriptor, and map it. The owner then closes the descriptor.
// Why it suffices: the kernel frees the memory with the last mapping, however the processes end. Its name has
//   a random token, so that a peer never maps the memory of another program or run.
// Without it: leftovers fill the memory of the host.
//
// Lifetime: the destructor unmaps the memory.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <absl/status/statusor.h>

#include "src/mesh/base/file_handle.h"

namespace weft::internal {

class SharedSegment {
 public:
  // Creates a segment of zeros. Its pages are committed on first use.
  // Errors: kResourceExhausted (the kernel has no memory or files left), kFailedPrecondition (the host
  //   forbids it). Both have the kernel's message.
  static absl::StatusOr<SharedSegment> Create(size_t bytes);
  // Maps the segment that `handle` names.
  // Errors: kFailedPrecondition (it cannot be opened: says what to check), kResourceExhausted (the kernel
  //   has no memory left to map it).
  static absl::StatusOr<SharedSegment> Map(std::string_view handle, size_t bytes);

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  // Page-aligned.
  std::byte* base() const { return base_; }
  // Text that tells another process of the node which segment this is. Valid until Seal.
  std::string handle() const;
  // No other process can map the segment from here on.
  void Seal() { file_ = FileHandle(); }

 private:
  SharedSegment(FileHandle file, std::string name, std::byte* base, size_t bytes)
      : file_(std::move(file)), name_(std::move(name)), base_(base), bytes_(bytes) {}
  static absl::StatusOr<SharedSegment> MapFile(FileHandle file, std::string name, size_t bytes);

  FileHandle file_;
  std::string name_;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace weft::internal
