#include "src/mesh/mpi/mpi_node_memory.h"

#include <algorithm>
#include <cstdint>

#include "weft/core/status.h"

namespace weft::internal {
namespace {

constexpr size_t kAlignment = 64;
// Extra bytes for alignment: Open MPI places a segment 8 bytes after a cache line's start.
constexpr size_t kSlack = kAlignment;
constexpr size_t kPage = 4096;

std::byte* AlignUp(void* base) {
  const auto address = reinterpret_cast<uintptr_t>(base);
  return static_cast<std::byte*>(base) + (kAlignment - address % kAlignment) % kAlignment;
}

// alloc_shared_noncontig gives every segment its own pages, so that first touch places them on the rank's
// NUMA node.
absl::StatusOr<MPI_Win> AllocateWindow(MPI_Comm node, size_t bytes) {
  MPI_Info info = MPI_INFO_NULL;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Info_create(&info), "MPI_Info_create"));
  void* base = nullptr;
  MPI_Win window = MPI_WIN_NULL;
  absl::Status status = MpiStatus(MPI_Info_set(info, "alloc_shared_noncontig", "true"),
                                  "MPI_Info_set (alloc_shared_noncontig)");
  if (status.ok()) {
    status = MpiStatus(
        MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), /*disp_unit=*/1, info, node, &base, &window),
        "MPI_Win_allocate_shared");
  }
  MPI_Info_free(&info);
  if (!status.ok()) return status;
  return window;
}

}  // namespace

size_t MpiSharedWindow::FootprintBytes(size_t segment_bytes) {
  return (segment_bytes + kSlack + kPage - 1) / kPage * kPage + kPage;
}

absl::StatusOr<MpiSharedWindow> MpiSharedWindow::Allocate(MpiSession& session, MPI_Comm node,
                                                          size_t segment_bytes) {
  const CallGuard::Scope call = session.Guard("MPI_Win_allocate_shared");
  WEFT_ASSIGN_OR_RETURN(const MPI_Win handle, AllocateWindow(node, segment_bytes + kSlack));
  MpiSharedWindow window(handle);
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Win_set_errhandler(handle, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler"));
  int ranks = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Comm_size(node, &ranks), "MPI_Comm_size"));
  for (int rank = 0; rank < ranks; ++rank) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* base = nullptr;
    WEFT_RETURN_IF_ERROR(
        MpiStatus(MPI_Win_shared_query(handle, rank, &bytes, &unit, &base), "MPI_Win_shared_query"));
    window.segments_.push_back(AlignUp(base));
  }
  window.MapForHugePages(segment_bytes);
  return window;
}

void MpiSharedWindow::MapForHugePages(size_t segment_bytes) {
  const auto [first, last] = std::minmax_element(segments_.begin(), segments_.end());
  mapping_ = SecondMapping::ForHugePages(*first, *last + segment_bytes);
  if (!mapping_) return;
  for (std::byte*& segment : segments_) segment = mapping_->At(segment);
}

MpiSharedWindow::~MpiSharedWindow() {
  if (window_ == MPI_WIN_NULL) return;
  Report(MpiStatus(MPI_Win_free(&window_), "MPI_Win_free"));
}

}  // namespace weft::internal
