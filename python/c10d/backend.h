// The c10d backend "weft": collectives of CPU tensors over weft's engine.
//
// Each group has four ordered streams: all-gathers, reduce-scatters, all-reduces, and the other collectives.
// Collectives of one stream run in the order of submission, which must be the same on all ranks of the group;
// collectives of different streams overlap. A barrier is in all streams, and so waits for all earlier ones.
//
// A tensor outside of node memory is staged through it, a large one piece by piece. Non-contiguous tensors
// are copied. A tensor of allocateTensor is moved in place.
//
// Thread safety: any thread may call any member, monitoredBarrier one at a time.
// Errors: ValueError for invalid arguments, which no other rank notices; DistBackendError for failures and
//   missed deadlines, with the ranks that are missing.
#pragma once

#include <ATen/ATen.h>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "python/c10d/backend_work.h"
#include "python/c10d/monitored_barrier.h"
#include "python/c10d/tensor_data.h"
#include "python/interface/group_collectives.h"

namespace weft::python {

class WeftBackend final : public ::c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

  struct Settings {
    std::string name;  // Name of the group.
    std::vector<uint64_t> global_ranks;
    std::chrono::milliseconds timeout{0};
    bool closes_session = false;  // shutdown() ends the session: this group is its first.
    c10::intrusive_ptr<::c10d::Store> store;
    std::string store_prefix;  // The same on all ranks, and different for each group that uses the store.
  };
  WeftBackend(std::shared_ptr<GroupCollectives> group, Settings settings);

  const std::string getBackendName() const override { return "weft"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ms_ = timeout.count(); }

  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const ::c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const ::c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const ::c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const ::c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const ::c10d::BarrierOptions& options) override;
  // Errors: DistBackendError, which names the ranks that did not arrive.
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) override;

  void setSequenceNumberForGroup() override {}  // All ranks start at 0.
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

  // Node memory, which the collectives read and write in place. The tensor may outlive the group.
  // Errors: MemoryError (no room), RuntimeError (the session is closed, or this is a forked child).
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  const std::shared_ptr<GroupCollectives>& group() const { return group_; }
  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override { return true; }

  // Fails all operations of the session, of all groups, on all ranks.
  void abort() override;
  void shutdown() override;

 private:
  std::chrono::milliseconds TimeoutOf(std::chrono::milliseconds requested) const;
  WorkPtr Receive(Tensors& tensors, int from, int tag, ::c10d::OpType type, const char* title);
  // A tensor for inputs of a collective, in ordinary memory if node memory has no room: the engine stages it.
  at::Tensor AllocateOrEmpty(int64_t size, const at::TensorOptions& options);
  void CheckRank(int64_t rank, const char* operation) const;
  std::vector<int64_t> EqualParts(int64_t count) const;

  const std::shared_ptr<GroupCollectives> group_;
  const Settings settings_;
  std::atomic<int64_t> timeout_ms_;
  std::atomic<uint64_t> sequence_{0};
  CopyingWorks copying_;
  MonitoredBarrier monitored_barrier_;
};

}  // namespace weft::python
