// Exchanges of tensors that are split over the ranks of a context group: all-to-all between two dims,
// all-gather and reduce-scatter along one dim, split and gather of replicated tensors, packs, and swaps
// between pairs of ranks.
//
// Forward and backward are pairs: AllToAll with a plan and with its Adjoint(); AllGather and ReduceScatter
// with one split; Split and SplitBackward; Gather and GatherBackward; ExchangePairs with itself.
//
// Exchanges are asynchronous, at critical priority. Results lie in node memory. Within a node each rank
// copies its parts out of its peers' tensors in one strided pass. Tensors outside node memory are staged
// first, so allocate inputs from a pool where you can.
//
// Thread safety: none; belongs to one thread.
// Collective: Create, by all ranks of the engine in the same order, each with its own group. Every member
//   except those declared local, by all ranks of the group in the same order.
// Lifetime: engine and pool must outlive the object and its results.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/dim_split.h"
#include "weft/context_parallel/pending_tensor.h"
#include "weft/core/tensor.h"
#include "weft/memory/buffer_pool.h"
#include "weft/mesh/process_group.h"

namespace weft {

// Factor of gradients in the backward of a split or a gather: 1, the number of ranks, or 1 / the number of
// ranks. kUp and kDown are for models that average gradients over ranks elsewhere. weft sums them, which
// needs kNone.
enum class GradientScale : uint8_t { kNone, kUp, kDown };

class SequenceExchange {
 public:
  // Takes a shared lane of the group. Errors: those of CommEngine::SharedLane.
  static absl::StatusOr<std::unique_ptr<SequenceExchange>> Create(CommEngine& engine, BufferPool& pool,
                                                                  const ProcessGroup& group);

  int ranks() const { return group_.size(); }
  int rank() const { return group_.group_rank; }
  BufferPool& pool() const { return pool_; }  // Holds the results.

  // Errors of all exchanges: kInvalidArgument (the tensor does not fit the plan or split; plan or split are
  // for another number of ranks), kResourceExhausted (the pool). `label` names the exchange in messages and
  // traces. If the labels of two ranks differ, Wait fails with kFailedPrecondition.

  // From a whole dim `plan.scatter` and a part of dim `plan.gather` to the reverse; see AllToAllPlan.
  absl::StatusOr<PendingTensor> AllToAll(const Tensor& input, const AllToAllPlan& plan,
                                         const std::string& label = "");

  // From parts to the whole on every rank.
  absl::StatusOr<PendingTensor> AllGather(const Tensor& part, const DimSplit& split,
                                          const std::string& label = "");
  // From wholes to parts, summed over the ranks in the order of the engine's reduce-scatter.
  absl::StatusOr<PendingTensor> ReduceScatter(const Tensor& whole, const DimSplit& split,
                                              const std::string& label = "");

  // Enter and leave a region that every rank computes alike, on whole tensors. Split and GatherBackward are
  // local. Split returns a window of its input.
  absl::StatusOr<PendingTensor> Split(const Tensor& whole, const DimSplit& split);
  absl::StatusOr<PendingTensor> SplitBackward(const Tensor& part_gradient, const DimSplit& split,
                                              GradientScale scale, const std::string& label = "");
  absl::StatusOr<PendingTensor> Gather(const Tensor& part, const DimSplit& split,
                                       const std::string& label = "");
  absl::StatusOr<PendingTensor> GatherBackward(const Tensor& whole_gradient, const DimSplit& split,
                                               GradientScale scale);

  // The same exchanges for packs. SplitPack and GatherPackBackward are local.
  absl::StatusOr<PendingTensor> SplitPack(const Tensor& whole, const PackSplit& pack);
  absl::StatusOr<PendingTensor> SplitPackBackward(const Tensor& part_gradient, const PackSplit& pack,
                                                  GradientScale scale, const std::string& label = "");
  absl::StatusOr<PendingTensor> GatherPack(const Tensor& part, const PackSplit& pack,
                                           const std::string& label = "");
  absl::StatusOr<PendingTensor> GatherPackBackward(const Tensor& whole_gradient, const PackSplit& pack,
                                                   GradientScale scale);

  // Rank r swaps tensors with rank ranks() - 1 - r. The middle rank of an odd number gets its own tensor
  // back. `received`: the shape of the peer's tensor.
  absl::StatusOr<PendingTensor> ExchangePairs(const Tensor& own, const Shape& received,
                                              const std::string& label = "");

 private:
  SequenceExchange(CommEngine& engine, BufferPool& pool, ProcessGroup group, LaneId lane)
      : engine_(engine), pool_(pool), group_(std::move(group)), lane_(lane) {}
  OpOptions Options(const std::string& label) const;
  absl::StatusOr<Tensor> Scaled(const Tensor& tensor, GradientScale scale);
  // Return an error unless the split is for this group's ranks, and the tensor is this rank's part or the
  // whole.
  absl::Status CheckRanks(const DimSplit& split, std::string_view what) const;
  absl::Status CheckPart(const Tensor& tensor, const DimSplit& split, std::string_view what) const;
  absl::Status CheckWhole(const Tensor& tensor, const DimSplit& split, std::string_view what) const;
  // `tensor` itself if it is contiguous, otherwise a packed copy.
  absl::StatusOr<Tensor> Contiguous(const Tensor& tensor);
  // `tensor` itself if it lies in node memory, otherwise a packed copy.
  absl::StatusOr<Tensor> InNodeMemory(const Tensor& tensor);
  // A contiguous copy in the pool.
  absl::StatusOr<Tensor> Packed(const Tensor& tensor);

  CommEngine& engine_;
  BufferPool& pool_;
  const ProcessGroup group_;
  const LaneId lane_;
};

}  // namespace weft
