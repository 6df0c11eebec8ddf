// Memory that processes of one node share: an MPI shared window, and the segments in it.
#pragma once

#include <cstddef>
#include <vector>

#include <absl/status/statusor.h>

#include "src/mesh/mpi/mpi_session.h"

namespace weft::internal {

class MpiSharedWindow {
 public:
  // Where Open MPI keeps the pages.
  static constexpr const char* kBackingStore = "/dev/shm";
  // What a segment of this size takes of it.
  static size_t FootprintBytes(size_t segment_bytes);

  // A zeroed, 64-byte aligned segment of `segment_bytes` for each rank of `node`. The room must have been
  // checked: Open MPI hangs on a request above it. Collective: all ranks of `node`. Errors: kInternal (what
  // MPI said).
  static absl::StatusOr<MpiSharedWindow> Allocate(MPI_Comm node, size_t segment_bytes);
  MpiSharedWindow(MpiSharedWindow&& other) noexcept
      : window_(std::exchange(other.window_, MPI_WIN_NULL)), segments_(std::move(other.segments_)) {}
  MpiSharedWindow& operator=(MpiSharedWindow&&) = delete;
  // Collective; see Note [Taking MPI down].
  ~MpiSharedWindow();

  // By rank of `node`.
  const std::vector<std::byte*>& segments() const { return segments_; }

 private:
  explicit MpiSharedWindow(MPI_Win window) : window_(window) {}
  MPI_Win window_;
  std::vector<std::byte*> segments_;
};

}  // namespace weft::internal
