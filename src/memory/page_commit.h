// Record of the committed pages of a lazily mapped segment; commits the missing ones, chunk by chunk.
//
// A lack of memory is thereby an error of Commit and not a SIGBUS at a later write.
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

  // Commits the chunks of [offset, offset + bytes) that are not committed yet. Contents do not change.
  // `free_bytes` returns the node's free memory; it is called only on kernels without MADV_POPULATE_WRITE.
  // Errors: kResourceExhausted (gives the bytes that could not be committed).
  absl::Status Commit(size_t offset, size_t bytes, absl::FunctionRef<absl::StatusOr<size_t>()> free_bytes);

 private:
  absl::Status CommitChunks(size_t begin, size_t end, absl::FunctionRef<absl::StatusOr<size_t>()> free_bytes);

  std::byte* base_;
  size_t bytes_;
  std::vector<bool> committed_;  // One flag per chunk.
};

}  // namespace weft::internal
