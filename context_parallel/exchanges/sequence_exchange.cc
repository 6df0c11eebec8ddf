#include "weft/context_parallel/sequence_exchange.h"

#include <utility>

#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

// True if each part of a tensor that is split along `dim` is contiguous in the whole.
bool PartsAreContiguous(const Shape& shape, int dim) {
  for (int outer = 0; outer < dim; ++outer) {
    if (shape[static_cast<size_t>(outer)] != 1) return false;
  }
  return true;
}

std::vector<int64_t> ElementCounts(const Shape& shape, const DimSplit& split) {
  std::vector<int64_t> counts;
  counts.reserve(split.sizes.size());
  for (int rank = 0; rank < split.ranks(); ++rank) {
    counts.push_back(ElementCount(split.PartShape(shape, rank)));
  }
  return counts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceExchange>> SequenceExchange::Create(CommEngine& engine,
                                                                           BufferPool& pool,
                                                                           const ProcessGroup& group) {
  WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.SharedLane(group, LanePurpose::kContext));
  return std::unique_ptr<SequenceExchange>(new SequenceExchange(engine, pool, group, lane));
}

OpOptions SequenceExchange::Options(const std::string& label) const {
  OpOptions options;
  options.priority = Priority::kCritical;
  options.identity = Hash64(label);
  options.label = label;
  return options;
}

absl::Status SequenceExchange::CheckRanks(const DimSplit& split, std::string_view what) const {
  if (split.ranks() == ranks()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(what), ": ", split.ToString(), " is a split over ",
                                                 split.ranks(), " ranks, but the group has ", ranks(),
                                                 ": make one for the group"));
}

absl::Status SequenceExchange::CheckPart(const Tensor& tensor, const DimSplit& split,
                                         std::string_view what) const {
  WEFT_RETURN_IF_ERROR(CheckRanks(split, what));
  return split.CheckPart(tensor.shape(), rank(), what);
}

absl::Status SequenceExchange::CheckWhole(const Tensor& tensor, const DimSplit& split,
                                          std::string_view what) const {
  WEFT_RETURN_IF_ERROR(CheckRanks(split, what));
  return split.CheckWhole(tensor.shape(), what);
}

absl::StatusOr<Tensor> SequenceExchange::Contiguous(const Tensor& tensor) {
  return tensor.view().IsContiguous() ? tensor : Packed(tensor);
}

absl::StatusOr<Tensor> SequenceExchange::InNodeMemory(const Tensor& tensor) {
  return engine_.heap().AddressOf(tensor.view().data) ? tensor : Packed(tensor);
}

absl::StatusOr<Tensor> SequenceExchange::Packed(const Tensor& tensor) {
  WEFT_ASSIGN_OR_RETURN(Tensor packed, PoolTensor(pool_, tensor.dtype(), tensor.shape()));
  WEFT_RETURN_IF_ERROR(StridedCopy(tensor.view(), packed.view()));
  return packed;
}

absl::StatusOr<Tensor> SequenceExchange::Scaled(const Tensor& tensor, GradientScale scale) {
  if (scale == GradientScale::kNone) return tensor;
  if (!IsFloating(tensor.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat("a gradient in ", ToAbsl(Name(tensor.dtype())),
                                                   " is not scaled: only in a floating-point dtype"));
  }
  const auto ranks = static_cast<float>(this->ranks());
  WEFT_ASSIGN_OR_RETURN(Tensor scaled, PoolTensor(pool_, tensor.dtype(), tensor.shape()));
  WEFT_RETURN_IF_ERROR(
      StridedCopy(tensor.view(), scaled.view(), scale == GradientScale::kUp ? ranks : 1.0F / ranks));
  return scaled;
}

absl::StatusOr<PendingTensor> SequenceExchange::AllToAll(const Tensor& input, const AllToAllPlan& plan,
                                                         const std::string& label) {
  WEFT_RETURN_IF_ERROR(CheckWhole(input, plan.scatter, "all_to_all"));
  WEFT_RETURN_IF_ERROR(CheckPart(input, plan.gather, "all_to_all"));
  const Shape shape = plan.gather.WholeShape(plan.scatter.PartShape(input.shape(), rank()));
  WEFT_ASSIGN_OR_RETURN(Tensor output, PoolTensor(pool_, input.dtype(), shape));
  std::vector<TensorView> sends;
  std::vector<TensorView> receives;
  for (int peer = 0; peer < ranks(); ++peer) {
    sends.push_back(plan.scatter.PartOf(input.view(), peer));
    receives.push_back(plan.gather.PartOf(output.view(), peer));
  }
  Work work = engine_.AllToAll(lane_, sends, receives, input.dtype(), Options(label));
  return PendingTensor(std::move(output), std::move(work), {input});
}

// If the parts are contiguous, the engine's all-gather sends each part once to every other node. Otherwise an
// all-to-all writes the parts to their strided places.
absl::StatusOr<PendingTensor> SequenceExchange::AllGather(const Tensor& part, const DimSplit& split,
                                                          const std::string& label) {
  WEFT_RETURN_IF_ERROR(CheckPart(part, split, "all_gather"));
  WEFT_ASSIGN_OR_RETURN(Tensor output, PoolTensor(pool_, part.dtype(), split.WholeShape(part.shape())));
  if (PartsAreContiguous(part.shape(), split.dim)) {
    WEFT_ASSIGN_OR_RETURN(Tensor own, Contiguous(part));
    const std::vector<int64_t> counts = ElementCounts(part.shape(), split);
    Work work = engine_.AllGather(lane_, own.view().data, output.view().data, part.dtype(), output.elements(),
                                  counts, Options(label));
    return PendingTensor(std::move(output), std::move(work), {std::move(own)});
  }
  WEFT_ASSIGN_OR_RETURN(Tensor own, InNodeMemory(part));  // Otherwise the engine stages it once per peer.
  const std::vector<TensorView> sends(static_cast<size_t>(ranks()), own.view());
  std::vector<TensorView> receives;
  receives.reserve(sends.size());
  for (int peer = 0; peer < ranks(); ++peer) receives.push_back(split.PartOf(output.view(), peer));
  Work work = engine_.AllToAll(lane_, sends, receives, part.dtype(), Options(label));
  return PendingTensor(std::move(output), std::move(work), {std::move(own)});
}

absl::StatusOr<PendingTensor> SequenceExchange::ReduceScatter(const Tensor& whole, const DimSplit& split,
                                                              const std::string& label) {
  WEFT_RETURN_IF_ERROR(CheckWhole(whole, split, "reduce_scatter"));
  const std::vector<int64_t> counts = ElementCounts(whole.shape(), split);
  Tensor input = whole;
  if (!PartsAreContiguous(whole.shape(), split.dim) || !whole.view().IsContiguous()) {
    // The engine needs the parts end to end.
    WEFT_ASSIGN_OR_RETURN(input, PoolTensor(pool_, whole.dtype(), {whole.elements()}));
    int64_t begin = 0;
    for (int peer = 0; peer < ranks(); ++peer) {
      const TensorView part = split.PartOf(whole.view(), peer);
      const TensorView run = input.view().Slice(0, begin, part.elements()).Reshape(part.shape);
      WEFT_RETURN_IF_ERROR(StridedCopy(part, run));
      begin += part.elements();
    }
  }
  WEFT_ASSIGN_OR_RETURN(Tensor output,
                        PoolTensor(pool_, whole.dtype(), split.PartShape(whole.shape(), rank())));
  Work work = engine_.ReduceScatter(lane_, input.view().data, output.view().data, whole.dtype(),
                                    whole.elements(), ReduceOp::kSum, counts, Options(label));
  return PendingTensor(std::move(output), std::move(work), {std::move(input)});
}

absl::StatusOr<PendingTensor> SequenceExchange::Split(const Tensor& whole, const DimSplit& split) {
  WEFT_RETURN_IF_ERROR(CheckWhole(whole, split, "split"));
  return PendingTensor(whole.Window(split.PartOf(whole.view(), rank())));
}

absl::StatusOr<PendingTensor> SequenceExchange::SplitBackward(const Tensor& part_gradient,
                                                              const DimSplit& split, GradientScale scale,
                                                              const std::string& label) {
  WEFT_RETURN_IF_ERROR(CheckPart(part_gradient, split, "split's backward"));
  WEFT_ASSIGN_OR_RETURN(const Tensor scaled, Scaled(part_gradient, scale));
  return AllGather(scaled, split, label);
}

absl::StatusOr<PendingTensor> SequenceExchange::Gather(const Tensor& part, const DimSplit& split,
                                                       const std::string& label) {
  return AllGather(part, split, label);
}

absl::StatusOr<PendingTensor> SequenceExchange::GatherBackward(const Tensor& whole_gradient,
                                                               const DimSplit& split, GradientScale scale) {
  WEFT_RETURN_IF_ERROR(CheckWhole(whole_gradient, split, "gather's backward"));
  WEFT_ASSIGN_OR_RETURN(Tensor scaled,
                        Scaled(whole_gradient.Window(split.PartOf(whole_gradient.view(), rank())), scale));
  return PendingTensor(std::move(scaled));
}

absl::StatusOr<PendingTensor> SequenceExchange::SplitPack(const Tensor& whole, const PackSplit& pack) {
  const DimSplit by_rank = pack.ByRank();
  WEFT_RETURN_IF_ERROR(CheckWhole(whole, by_rank, "split of a pack"));
  WEFT_ASSIGN_OR_RETURN(Tensor part,
                        PoolTensor(pool_, whole.dtype(), by_rank.PartShape(whole.shape(), rank())));
  const auto pieces = pack.PiecesByRank();
  for (const PackSplit::Piece& piece : pieces[static_cast<size_t>(rank())]) {
    WEFT_RETURN_IF_ERROR(StridedCopy(whole.view().Slice(pack.dim, piece.whole_begin, piece.count),
                                     part.view().Slice(pack.dim, piece.part_begin, piece.count)));
  }
  return PendingTensor(std::move(part));
}

absl::StatusOr<PendingTensor> SequenceExchange::SplitPackBackward(const Tensor& part_gradient,
                                                                  const PackSplit& pack, GradientScale scale,
                                                                  const std::string& label) {
  WEFT_RETURN_IF_ERROR(CheckPart(part_gradient, pack.ByRank(), "backward of a pack's split"));
  WEFT_ASSIGN_OR_RETURN(const Tensor scaled, Scaled(part_gradient, scale));
  return GatherPack(scaled, pack, label);
}

absl::StatusOr<PendingTensor> SequenceExchange::GatherPack(const Tensor& part, const PackSplit& pack,
                                                           const std::string& label) {
  const DimSplit by_rank = pack.ByRank();
  WEFT_ASSIGN_OR_RETURN(PendingTensor gathered, AllGather(part, by_rank, label));
  WEFT_ASSIGN_OR_RETURN(const Tensor whole,
                        PoolTensor(pool_, part.dtype(), by_rank.WholeShape(part.shape())));
  gathered.FinishWith([whole, by_rank,
                       pieces = pack.PiecesByRank()](const Tensor& gathered_parts) -> absl::StatusOr<Tensor> {
    for (int rank = 0; rank < by_rank.ranks(); ++rank) {
      const TensorView held = by_rank.PartOf(gathered_parts.view(), rank);
      for (const PackSplit::Piece& piece : pieces[static_cast<size_t>(rank)]) {
        WEFT_RETURN_IF_ERROR(StridedCopy(held.Slice(by_rank.dim, piece.part_begin, piece.count),
                                         whole.view().Slice(by_rank.dim, piece.whole_begin, piece.count)));
      }
    }
    return whole;
  });
  return gathered;
}

absl::StatusOr<PendingTensor> SequenceExchange::GatherPackBackward(const Tensor& whole_gradient,
                                                                   const PackSplit& pack,
                                                                   GradientScale scale) {
  WEFT_ASSIGN_OR_RETURN(const PendingTensor part, SplitPack(whole_gradient, pack));
  WEFT_ASSIGN_OR_RETURN(Tensor scaled, Scaled(part.result(), scale));
  return PendingTensor(std::move(scaled));
}

absl::StatusOr<PendingTensor> SequenceExchange::ExchangePairs(const Tensor& own, const Shape& received,
                                                              const std::string& label) {
  const int peer = ranks() - 1 - rank();
  if (peer == rank() && own.shape() != received) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank(), " is the middle of ", ranks(),
                                                   " and has its own tensor back: of shape ",
                                                   ToString(own.shape()), ", not ", ToString(received)));
  }
  WEFT_ASSIGN_OR_RETURN(Tensor output, PoolTensor(pool_, own.dtype(), received));
  Work work = engine_.SendReceive(lane_, own.view(), peer, output.view(), peer, Options(label));
  return PendingTensor(std::move(output), std::move(work), {own});
}

}  // namespace weft
