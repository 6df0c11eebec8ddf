// Makes the kernel back a lazily paged segment with memory, part by part, so that a lack of it is an error
// here and not a SIGBUS at some later write.
//
// Thread safety: none; the owner locks.
#pragma once

#include <cstddef>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

namespace weft::internal {

class PageCommitter {
 public:
  PageCommitter(std::byte* base, size_t bytes);

  // Backs [offset, offset + bytes) where it is not yet; contents stay. `free_bytes` says what the node has
  // left; it is asked only where the kernel cannot do this in one call. Errors: kResourceExhausted.
  absl::Status Commit(size_t offset, size_t bytes, absl::FunctionRef<absl::StatusOr<size_t>()> free_bytes);

 private:
  absl::Status CommitChunks(size_t begin, size_t end, absl::FunctionRef<absl::StatusOr<size_t>()> free_bytes);

  std::byte* base_;
  size_t bytes_;
  std::vector<bool> committed_;  // By chunk.
};

}  // namespace weft::internal
