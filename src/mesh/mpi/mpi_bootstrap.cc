#include "weft/mesh/mpi_bootstrap.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/mesh/base/anonymous_memory.h"
#include "src/mesh/base/host_memory.h"
#include "src/mesh/mpi/mpi_blob_exchange.h"
#include "src/mesh/mpi/mpi_duplicates.h"
#include "src/mesh/mpi/mpi_node_memory.h"
#include "src/mesh/mpi/mpi_session.h"
#include "src/mesh/mpi/mpi_wire.h"
#include "weft/core/status.h"

namespace weft {
namespace {

using internal::MpiCommunicator;
using internal::MpiSession;
using internal::MpiSharedWindow;
using internal::MpiStatus;

// Every rank publishes the lowest rank of its node. Nodes are then numbered in the order of those ranks.
absl::StatusOr<NodeMap> FindNodes(MPI_Comm world, int ranks, MPI_Comm node) {
  int rank = 0;
  int lowest = 0;
  MPI_Comm_rank(world, &rank);
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Allreduce(&rank, &lowest, 1, MPI_INT, MPI_MIN, node), "MPI_Allreduce"));
  std::vector<int> lowest_of(static_cast<size_t>(ranks));
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Allgather(&lowest, 1, MPI_INT, lowest_of.data(), 1, MPI_INT, world), "MPI_Allgather"));
  NodeMap nodes;
  std::vector<int> number_of(lowest_of.size());  // Node number, indexed by the node's lowest rank.
  int count = 0;
  for (int other = 0; other < ranks; ++other) {
    if (lowest_of[other] == other) number_of[other] = count++;
    nodes.node_of_rank.push_back(number_of[lowest_of[other]]);
  }
  return nodes;
}

class MpiBootstrap : public Bootstrap {
 public:
  static absl::StatusOr<std::unique_ptr<Bootstrap>> Make();

  int rank() const override { return rank_; }
  const NodeMap& node_map() const override { return nodes_; }
  Runtime& runtime() override { return runtime_; }
  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override {
    return blobs_->AllGather(blob, timeout);
  }
  absl::StatusOr<NodeMemory> ReserveNodeMemory(size_t segment_bytes) override;
  absl::StatusOr<size_t> FreeNodeMemory() const override;
  absl::StatusOr<std::unique_ptr<WireLink>> OpenWire() override;
  int64_t link_count() const override { return link_comms_.count(); }
  void SkipLinks(int64_t count) override { link_comms_.Skip(count); }

 private:
  MpiBootstrap(std::shared_ptr<MpiSession> session, MpiCommunicator world, MpiCommunicator node,
               NodeMap nodes, std::unique_ptr<internal::MpiBlobExchange> blobs)
      : session_(std::move(session)),
        world_(std::move(world)),
        node_comm_(std::move(node)),
        rank_(world_.rank()),
        nodes_(std::move(nodes)),
        blobs_(std::move(blobs)) {}

  absl::Status CheckFreeMemory(size_t segment_bytes) const;
  absl::StatusOr<NodeMemory> ReservePrivate(size_t segment_bytes);
  absl::StatusOr<NodeMemory> ReserveShared(size_t segment_bytes);

  // Members are destroyed in reverse order: MPI is finalized after everything that uses it.
  std::shared_ptr<MpiSession> session_;
  MpiCommunicator world_;
  MpiCommunicator node_comm_;
  const int rank_;
  const NodeMap nodes_;
  SystemRuntime runtime_;
  std::unique_ptr<internal::MpiBlobExchange> blobs_;
  internal::MpiDuplicates link_comms_{world_.get()};
  std::deque<MpiSharedWindow> windows_;
  std::deque<internal::AnonymousMemory> own_memory_;
};

absl::StatusOr<std::unique_ptr<Bootstrap>> MpiBootstrap::Make() {
  WEFT_ASSIGN_OR_RETURN(auto session, MpiSession::Open());
  WEFT_ASSIGN_OR_RETURN(MpiCommunicator world, MpiCommunicator::Duplicate(MPI_COMM_WORLD));
  WEFT_ASSIGN_OR_RETURN(MpiCommunicator node, MpiCommunicator::SplitByNode(world.get()));
  WEFT_ASSIGN_OR_RETURN(NodeMap nodes, FindNodes(world.get(), world.size(), node.get()));
  WEFT_ASSIGN_OR_RETURN(auto blobs, internal::MpiBlobExchange::Create(session, world.get()));
  return std::unique_ptr<Bootstrap>(new MpiBootstrap(std::move(session), std::move(world), std::move(node),
                                                     std::move(nodes), std::move(blobs)));
}

absl::StatusOr<NodeMemory> MpiBootstrap::ReserveNodeMemory(size_t segment_bytes) {
  WEFT_ASSIGN_OR_RETURN(const absl::Duration timeout, DefaultTimeout());
  // Agree before the allocation, which is a collective without a deadline.
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(*this, CheckFreeMemory(segment_bytes), timeout));
  return node_comm_.size() == 1 ? ReservePrivate(segment_bytes) : ReserveShared(segment_bytes);
}

absl::StatusOr<size_t> MpiBootstrap::FreeNodeMemory() const {
  WEFT_ASSIGN_OR_RETURN(const size_t host, internal::AvailableHostMemory());
  if (node_comm_.size() == 1) return host;
  WEFT_ASSIGN_OR_RETURN(const size_t store, internal::FreeFileSystemBytes(MpiSharedWindow::kBackingStore));
  return std::min(host, store);
}

absl::Status MpiBootstrap::CheckFreeMemory(size_t segment_bytes) const {
  WEFT_ASSIGN_OR_RETURN(const size_t free_bytes, FreeNodeMemory());
  const auto ranks = static_cast<size_t>(node_comm_.size());
  if (MpiSharedWindow::FootprintBytes(segment_bytes) <= free_bytes / ranks) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot reserve ", segment_bytes, " bytes of node memory for each of ", ranks, " ranks: only ",
      free_bytes, " are free on the node",
      ranks == 1
          ? absl::string_view("; reserve less, or free memory")
          : absl::string_view(" (the minimum of RAM and /dev/shm); reserve less, or make /dev/shm larger")));
}

// A rank without local peers needs no shared window.
absl::StatusOr<NodeMemory> MpiBootstrap::ReservePrivate(size_t segment_bytes) {
  WEFT_ASSIGN_OR_RETURN(auto memory, internal::AnonymousMemory::Reserve(segment_bytes, segment_bytes));
  own_memory_.push_back(std::move(memory));
  return NodeMemory{{{rank_, own_memory_.back().base()}}, segment_bytes, /*shared_between_processes=*/false};
}

absl::StatusOr<NodeMemory> MpiBootstrap::ReserveShared(size_t segment_bytes) {
  WEFT_ASSIGN_OR_RETURN(MpiSharedWindow window, MpiSharedWindow::Allocate(node_comm_.get(), segment_bytes));
  windows_.push_back(std::move(window));
  NodeMemory memory{{}, segment_bytes, /*shared_between_processes=*/true};
  const std::vector<int> ranks = nodes_.RanksOf(node());
  for (size_t i = 0; i < ranks.size(); ++i)
    memory.segments.push_back({ranks[i], windows_.back().segments()[i]});
  return memory;
}

absl::StatusOr<std::unique_ptr<WireLink>> MpiBootstrap::OpenWire() {
  WEFT_ASSIGN_OR_RETURN(const absl::Duration timeout, DefaultTimeout());
  WEFT_ASSIGN_OR_RETURN(MpiCommunicator comm, link_comms_.Open(timeout));
  return internal::MpiWire::Open(session_, std::move(comm));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bootstrap>> MakeMpiBootstrap() { return MpiBootstrap::Make(); }

}  // namespace weft
