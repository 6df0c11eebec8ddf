#include "bench/mpi_baseline.h"

#include <algorithm>
#include <array>

#include <mpi.h>

namespace weft::bench {
namespace {

// Global because MPI's profiling interface gives `MPI_Comm_split_type` no state.
bool ranks_are_nodes = false;

}  // namespace

void CountRanksAsNodes() { ranks_are_nodes = true; }

class MpiBaseline::Impl {
 public:
  Impl() {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_ARE_FATAL);
  }
  ~Impl() { MPI_Comm_free(&comm_); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  MPI_Comm comm() const { return comm_; }

  template <typename Start>
  static void StartAndWait(Start start) {
    MPI_Request request = MPI_REQUEST_NULL;
    start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);  // NOLINT(clang-analyzer-optin.mpi.MPI-Checker): `start` does.
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

MpiBaseline::MpiBaseline() : impl_(std::make_unique<Impl>()) {}
MpiBaseline::~MpiBaseline() = default;

void MpiBaseline::AllGather(Style style, const float* input, float* output, int64_t part) {
  const int n = static_cast<int>(part);
  if (style == Style::kBlocking) {
    MPI_Allgather(input, n, MPI_FLOAT, output, n, MPI_FLOAT, impl_->comm());
    return;
  }
  Impl::StartAndWait([&](MPI_Request* request) {
    MPI_Iallgather(input, n, MPI_FLOAT, output, n, MPI_FLOAT, impl_->comm(), request);
  });
}

void MpiBaseline::ReduceScatter(Style style, const float* input, float* output, int64_t part) {
  const int n = static_cast<int>(part);
  if (style == Style::kBlocking) {
    MPI_Reduce_scatter_block(input, output, n, MPI_FLOAT, MPI_SUM, impl_->comm());
    return;
  }
  Impl::StartAndWait([&](MPI_Request* request) {
    MPI_Ireduce_scatter_block(input, output, n, MPI_FLOAT, MPI_SUM, impl_->comm(), request);
  });
}

void MpiBaseline::AllReduce(Style style, const float* input, float* output, int64_t count) {
  const int n = static_cast<int>(count);
  if (style == Style::kBlocking) {
    MPI_Allreduce(input, output, n, MPI_FLOAT, MPI_SUM, impl_->comm());
    return;
  }
  Impl::StartAndWait([&](MPI_Request* request) {
    MPI_Iallreduce(input, output, n, MPI_FLOAT, MPI_SUM, impl_->comm(), request);
  });
}

void MpiBaseline::AllToAll(Style style, const float* input, float* output, int64_t part) {
  const int n = static_cast<int>(part);
  if (style == Style::kBlocking) {
    MPI_Alltoall(input, n, MPI_FLOAT, output, n, MPI_FLOAT, impl_->comm());
    return;
  }
  Impl::StartAndWait([&](MPI_Request* request) {
    MPI_Ialltoall(input, n, MPI_FLOAT, output, n, MPI_FLOAT, impl_->comm(), request);
  });
}

void MpiBaseline::Stream(const float* input, float* output, int64_t count, int distance,
                         const std::function<void(int64_t begin, int64_t end)>& arrived) {
  constexpr int64_t kMessage = int64_t{32} * 1024;  // Elements: 128 KiB.
  constexpr int64_t kWindow = 4;
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(impl_->comm(), &rank);
  MPI_Comm_size(impl_->comm(), &size);
  const int to = (rank + distance) % size;
  const int from = (rank - distance + size) % size;
  // Each entry of the window has a receive and a send. An entry is reused when both have completed.
  std::array<std::array<MPI_Request, 2>, kWindow> window;
  for (auto& entry : window) entry.fill(MPI_REQUEST_NULL);
  const int64_t messages = (count + kMessage - 1) / kMessage;
  for (int64_t i = 0; i < messages + kWindow; ++i) {
    std::array<MPI_Request, 2>& entry = window[static_cast<size_t>(i % kWindow)];
    MPI_Waitall(2, entry.data(), MPI_STATUSES_IGNORE);
    if (i < messages) {
      const int64_t begin = i * kMessage;
      const int n = static_cast<int>(std::min(kMessage, count - begin));
      MPI_Irecv(output + begin, n, MPI_FLOAT, from, 0, impl_->comm(), &entry[0]);
      MPI_Isend(input + begin, n, MPI_FLOAT, to, 0, impl_->comm(), &entry[1]);
    }
    if (i >= kWindow) {
      const int64_t begin = (i - kWindow) * kMessage;
      arrived(begin, std::min(begin + kMessage, count));
    }
  }
}

void MpiBaseline::Barrier() { MPI_Barrier(impl_->comm()); }

double MpiBaseline::Slowest(double seconds) {
  double slowest = 0;
  MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, impl_->comm());
  return slowest;
}

bool MpiBaseline::TrueEverywhere(bool value) {
  int mine = value ? 1 : 0;
  int all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, impl_->comm());
  return all == 1;
}

}  // namespace weft::bench

// Takes the place of MPI's function, which stays available under its profiling name.
extern "C" int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* split) {
  if (!weft::bench::ranks_are_nodes) return PMPI_Comm_split_type(comm, type, key, info, split);
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  return PMPI_Comm_split(comm, /*color=*/rank, key, split);
}
