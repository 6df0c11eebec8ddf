// Node-shared memory over MPI: a shared window with one segment for each rank of the node.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>

#include "src/mesh/mpi/mpi_session.h"
#include "src/mesh/mpi/second_mapping.h"

namespace weft::internal {

class MpiSharedWindow {
 public:
  // File system in which Open MPI stores the pages.
  static constexpr const char* kBackingStore = "/dev/shm";
  // Bytes of the backing store that a segment needs.
  static size_t FootprintBytes(size_t segment_bytes);

  // Allocates a zeroed, 64-byte aligned segment of `segment_bytes` for each rank of `node`.
  // REQUIRES: the backing store has FootprintBytes(segment_bytes) free for each rank; otherwise Open MPI
  // hangs.
  // Collective: all ranks of `node`.
  // Errors: kInternal (has MPI's error message).
  static absl::StatusOr<MpiSharedWindow> Allocate(MpiSession& session, MPI_Comm node, size_t segment_bytes);
  MpiSharedWindow(MpiSharedWindow&& other) noexcept
      : window_(std::exchange(other.window_, MPI_WIN_NULL)),
        mapping_(std::move(other.mapping_)),
        segments_(std::move(other.segments_)) {}
  MpiSharedWindow& operator=(MpiSharedWindow&&) = delete;
  // Collective: all ranks of `node`. See Note [MPI teardown].
  ~MpiSharedWindow();

  // Segment bases, indexed by rank of `node`.
  const std::vector<std::byte*>& segments() const { return segments_; }

 private:
  explicit MpiSharedWindow(MPI_Win window) : window_(window) {}
  // MPI maps the window at addresses where huge pages do not fit.
  void MapForHugePages(size_t segment_bytes);

  MPI_Win window_;
  std::optional<SecondMapping> mapping_;
  std::vector<std::byte*> segments_;
};

}  // namespace weft::internal
