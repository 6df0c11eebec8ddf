// Record of the committed pages of a lazily mapped segment; commits the missing ones, chunk by chunk.
//
// A lack of memory is thereby an error of Commit, and neither a SIGBUS at a later write nor a kill by the OOM
// killer. Beyond the limit of a control group the kernel kills a process that populates pages, so Commit
// compares with the free memory first. It commits in steps and leaves a margin of the host's memory, because
// other ranks of the node may commit at the same time. A full file system needs no margin where the kernel
// refuses its pages. Kernels before 5.14 have no MADV_POPULATE_WRITE, and end a process that touches such a
// page: there, a margin of the file system stays free, too. The pages are mapped already, so the free address
// space does not matter.
//
// Thread safety: none; the owner locks.
#pragma once

#include <cstddef>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include "weft/mesh/host_memory.h"

namespace weft::internal {

class PageCommitter {
 public:
  static constexpr size_t kStepBytes = size_t{32} << 20;
  static constexpr size_t kMarginBytes = size_t{32} << 20;
  using FreeMemoryReader = absl::FunctionRef<absl::StatusOr<FreeMemory>()>;

  PageCommitter(std::byte* base, size_t bytes);

  // Commits the chunks of [offset, offset + bytes) that are not committed yet. Contents do not change.
  // `free_memory` returns the node's free memory. It is called once for every kStepBytes, and more often
  // where the file system has less than kMarginBytes.
  // Errors: kResourceExhausted (gives the bytes that could not be committed, those that were left, and the
  // scarcest resource).
  absl::Status Commit(size_t offset, size_t bytes, FreeMemoryReader free_memory);

 private:
  absl::Status CommitChunks(size_t begin, size_t end, FreeMemoryReader free_memory);
  // The part of the free memory that may be committed.
  absl::StatusOr<FreeMemory> Committable(FreeMemoryReader free_memory) const;
  // Errors: kResourceExhausted (`bytes` may not be taken of the free memory).
  absl::Status CheckFree(size_t bytes, FreeMemoryReader free_memory);

  std::byte* base_;
  size_t bytes_;
  bool populates_;               // The kernel has MADV_POPULATE_WRITE.
  size_t allowance_ = 0;         // Bytes to commit before the free memory is read again.
  std::vector<bool> committed_;  // One flag per chunk.
};

}  // namespace weft::internal
