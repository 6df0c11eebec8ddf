#include "weft/mesh/thread_bootstrap.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <thread>
#include <utility>

#include <absl/base/thread_annotations.h>

#include "src/mesh/base/deadline.h"
#include "src/mesh/base/gather_round.h"
#include "src/mesh/base/rank_outcomes.h"
#include "src/mesh/host/node_memory_limits.h"
#include "src/mesh/threads/thread_fabric.h"
#include "weft/core/mutex.h"

namespace weft {
namespace {

// State that all ranks share. The n-th gather on one rank matches the n-th gather on every other rank, and
// links match alike. Reservations match by their ReservationNumber.
//
// Thread safety: any thread may call any member.
class SharedState {
 public:
  explicit SharedState(NodeMap nodes) : nodes_(std::move(nodes)) {}

  const NodeMap& nodes() const { return nodes_; }

  absl::StatusOr<std::vector<std::string>> Gather(int rank, size_t call, std::string_view blob,
                                                  absl::Duration timeout);
  absl::StatusOr<NodeMemory> Reserve(int node, internal::ReservationNumber number, size_t segment_bytes);
  std::shared_ptr<internal::ThreadFabric> Fabric(size_t call);
  absl::StatusOr<FreeMemory> FreeNodeMemory() const {
    return internal::FreeMemoryOfEmulatedNode(nodes_.node_count());
  }

 private:
  const NodeMap nodes_;
  Mutex mutex_;
  std::condition_variable_any arrival_;
  std::map<size_t, internal::GatherRound> rounds_ ABSL_GUARDED_BY(mutex_);
  internal::NodeReservations reservations_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<internal::ThreadFabric>> fabrics_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::vector<std::string>> SharedState::Gather(int rank, size_t call, std::string_view blob,
                                                             absl::Duration timeout) {
  const auto deadline = internal::DeadlineAfter(timeout);
  const MutexLock lock(mutex_);
  internal::GatherRound& round = rounds_.try_emplace(call, nodes_.size()).first->second;
  round.Arrive(rank, blob);
  if (round.complete()) arrival_.notify_all();
  arrival_.wait_until(mutex_, deadline, [&] { return round.complete(); });
  absl::StatusOr<std::vector<std::string>> result = round.Result(timeout);
  if (round.Leave()) rounds_.erase(call);
  return result;
}

absl::StatusOr<NodeMemory> SharedState::Reserve(int node, internal::ReservationNumber number,
                                                size_t segment_bytes) {
  const MutexLock lock(mutex_);
  return reservations_.Segments(node, nodes_.RanksOf(node), number, segment_bytes,
                                [this] { return FreeNodeMemory(); });
}

std::shared_ptr<internal::ThreadFabric> SharedState::Fabric(size_t call) {
  const MutexLock lock(mutex_);
  while (call >= fabrics_.size()) fabrics_.push_back(std::make_shared<internal::ThreadFabric>(nodes_.size()));
  return fabrics_[call];
}

class ThreadBootstrap : public Bootstrap {
 public:
  ThreadBootstrap(int rank, std::shared_ptr<SharedState> shared) : rank_(rank), shared_(std::move(shared)) {}

  int rank() const override { return rank_; }
  const NodeMap& node_map() const override { return shared_->nodes(); }
  Runtime& runtime() override { return runtime_; }

  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override {
    return shared_->Gather(rank_, calls_.NextGather(), blob, timeout);
  }

  absl::StatusOr<NodeMemory> ReserveNodeMemory(size_t segment_bytes) override {
    return shared_->Reserve(node(), calls_.NextReservation(), segment_bytes);
  }
  absl::StatusOr<FreeMemory> FreeNodeMemory() const override { return shared_->FreeNodeMemory(); }

  absl::StatusOr<std::unique_ptr<WireLink>> OpenLink(absl::Duration /*timeout*/) override {
    return std::make_unique<internal::FabricLink>(rank_, shared_->Fabric(links_++));
  }
  std::string TransportName() const override { return "memory of this process"; }
  int64_t link_count() const override { return static_cast<int64_t>(links_); }
  void SkipLinks(int64_t count) override { links_ = std::max(links_, static_cast<size_t>(count)); }

 private:
  const int rank_;
  const std::shared_ptr<SharedState> shared_;
  SystemRuntime runtime_;
  internal::CallNumbers calls_;
  size_t links_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Bootstrap>> MakeThreadBootstraps(const NodeMap& nodes) {
  const auto shared = std::make_shared<SharedState>(nodes);
  std::vector<std::unique_ptr<Bootstrap>> bootstraps;
  bootstraps.reserve(static_cast<size_t>(nodes.size()));
  for (int rank = 0; rank < nodes.size(); ++rank) {
    bootstraps.push_back(std::make_unique<ThreadBootstrap>(rank, shared));
  }
  return bootstraps;
}

absl::Status RunThreadRanks(const NodeMap& nodes, absl::FunctionRef<absl::Status(Bootstrap&)> body) {
  const auto bootstraps = MakeThreadBootstraps(nodes);
  std::vector<absl::Status> outcomes(bootstraps.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < bootstraps.size(); ++rank) {
    threads.emplace_back([&, rank] { outcomes[rank] = body(*bootstraps[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return internal::ErrorOfRanks(outcomes);
}

}  // namespace weft
