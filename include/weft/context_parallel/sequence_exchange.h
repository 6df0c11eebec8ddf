// Moves tensors between ways of being split over the ranks of a context group: all-to-all between two dims,
// all-gather and reduce-scatter along one, splits and gathers of replicated regions, packs, and pairs of
// ranks.
//
// Forward and backward are pairs: AllToAll with its plan and with the plan's Adjoint(); AllGather and
// ReduceScatter of one split; Split and SplitBackward; Gather and GatherBackward; ExchangePairs with itself.
//
// Everything is asynchronous and critical: somebody waits for it. Results lie in node memory. Within a node
// each rank copies its parts out of its peers' tensors in one strided pass; tensors outside node memory are
// staged first, so inputs had better come from a pool, too.
//
// Thread safety: none; one thread drives it.
// Collective: Create, and every member but those that say otherwise, by all ranks of the group in one order.
// Lifetime: engine and pool must outlive it and its results.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/dim_split.h"
#include "weft/context_parallel/pending_tensor.h"
#include "weft/core/tensor.h"
#include "weft/memory/buffer_pool.h"
#include "weft/mesh/process_group.h"

namespace weft {

// What the backward of a split or a gather multiplies gradients by: one, the number of ranks, or one over it.
// Up and down are for ranks whose gradients are averaged somewhere; where all are summed, as weft's are, it
// is one.
enum class GradientScale : uint8_t { kNone, kUp, kDown };

class SequenceExchange {
 public:
  // Adds a lane. Errors: kInvalidArgument (this rank is not in the group), kResourceExhausted (lanes).
  static absl::StatusOr<std::unique_ptr<SequenceExchange>> Create(CommEngine& engine, BufferPool& pool,
                                                                  const ProcessGroup& group);

  int ranks() const { return group_.size(); }
  int rank() const { return group_.group_rank; }

  // Errors of all: kInvalidArgument (the tensor is not what plan or split says; they
  // are for another number of ranks), kResourceExhausted (the
  // pool). `label` is for messages and traces; ranks whose labels differ are told so.

  absl::StatusOr<PendingTensor> AllToAll(const Tensor& input, const AllToAllPlan& plan,
                                         const std::string& label = "");

  // Parts to the whole, on every rank; and wholes to parts, added up over the ranks in the order of the
  // engine's reduce-scatter.
  absl::StatusOr<PendingTensor> AllGather(const Tensor& part, const DimSplit& split,
                                          const std::string& label = "");
  absl::StatusOr<PendingTensor> ReduceScatter(const Tensor& whole, const DimSplit& split,
                                              const std::string& label = "");

  // Into and out of regions that every rank computes alike. Split and GatherBackward are local. What Split
  // gives is a window of its input.
  absl::StatusOr<PendingTensor> Split(const Tensor& whole, const DimSplit& split);
  absl::StatusOr<PendingTensor> SplitBackward(const Tensor& part_gradient, const DimSplit& split,
                                              GradientScale scale, const std::string& label = "");
  absl::StatusOr<PendingTensor> Gather(const Tensor& part, const DimSplit& split,
                                       const std::string& label = "");
  absl::StatusOr<PendingTensor> GatherBackward(const Tensor& whole_gradient, const DimSplit& split,
                                               GradientScale scale);

  // The same of packs. SplitPack and GatherPackBackward are local.
  absl::StatusOr<PendingTensor> SplitPack(const Tensor& whole, const PackSplit& pack);
  absl::StatusOr<PendingTensor> SplitPackBackward(const Tensor& part_gradient, const PackSplit& pack,
                                                  GradientScale scale, const std::string& label = "");
  absl::StatusOr<PendingTensor> GatherPack(const Tensor& part, const PackSplit& pack,
                                           const std::string& label = "");
  absl::StatusOr<PendingTensor> GatherPackBackward(const Tensor& whole_gradient, const PackSplit& pack,
                                                   GradientScale scale);

  // Rank r swaps tensors with rank ranks() - 1 - r; the middle one of an odd number has its own back.
  // `received`: the shape of what comes.
  absl::StatusOr<PendingTensor> ExchangePairs(const Tensor& own, const Shape& received,
                                              const std::string& label = "");

 private:
  SequenceExchange(CommEngine& engine, BufferPool& pool, ProcessGroup group, LaneId lane)
      : engine_(engine), pool_(pool), group_(std::move(group)), lane_(lane) {}
  OpOptions Options(const std::string& label) const;
  absl::StatusOr<Tensor> Scaled(const Tensor& tensor, GradientScale scale);
  // An error unless the split is for this group's ranks, and the tensor this rank's part of it, or the whole.
  absl::Status CheckRanks(const DimSplit& split, std::string_view what) const;
  absl::Status CheckPart(const Tensor& tensor, const DimSplit& split, std::string_view what) const;
  absl::Status CheckWhole(const Tensor& tensor, const DimSplit& split, std::string_view what) const;
  // Row-major, in a block of the pool unless it is row-major already.
  absl::StatusOr<Tensor> Contiguous(const Tensor& tensor);
  // In node memory: a copy in the pool unless it is there already.
  absl::StatusOr<Tensor> Readable(const Tensor& tensor);
  absl::StatusOr<Tensor> Packed(const Tensor& tensor);

  CommEngine& engine_;
  BufferPool& pool_;
  const ProcessGroup group_;
  const LaneId lane_;
};

}  // namespace weft
