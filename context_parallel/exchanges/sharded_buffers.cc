#include "weft/context_parallel/sharded_buffers.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>

#include "weft/context_parallel/pending_tensor.h"
#include "weft/context_parallel/sequence_parts.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

// One past the last byte of a view.
const std::byte* EndOf(const TensorView& view) {
  const auto* end = static_cast<const std::byte*>(view.data);
  if (view.elements() == 0) return end;
  int64_t last = 0;
  for (size_t dim = 0; dim < view.shape.size(); ++dim) last += (view.shape[dim] - 1) * view.strides[dim];
  return end + BytesOf(last + 1, view.dtype);
}

bool Overlap(const TensorView& a, const TensorView& b) {
  const std::less<> before;
  return before(static_cast<const std::byte*>(a.data), EndOf(b)) &&
         before(static_cast<const std::byte*>(b.data), EndOf(a));
}

absl::Status AnnotateBuffer(size_t buffer, const absl::Status& error) {
  return Annotate(error, absl::StrCat("buffer ", buffer));
}

// Views of the parts of all ranks, end to end in `memory`. `shape`: the shape of the whole tensor.
std::vector<TensorView> PartsInRankOrder(std::byte* memory, DType dtype, const Shape& shape, int dim,
                                         const SequenceLayout& layout) {
  std::vector<TensorView> parts;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    Shape own = shape;
    own[static_cast<size_t>(dim)] = layout.TokensOf(rank);
    parts.push_back(TensorView::Contiguous(memory, dtype, std::move(own)));
    memory += parts.back().bytes();
  }
  return parts;
}

}  // namespace

ShardedBuffers::~ShardedBuffers() {
  if (open_ == nullptr) return;
  for (Saved& saved : whole_) *saved.buffer = std::move(saved.whole);
  *open_ = false;
}

BufferSharder::BufferSharder(CommEngine& engine, const ProcessGroup& context, Module* model, LaneId lane)
    : engine_(engine),
      context_(context),
      model_(model),
      lane_(lane),
      pool_(engine.heap(), "sequence buffers") {}

absl::StatusOr<std::unique_ptr<BufferSharder>> BufferSharder::Create(CommEngine& engine,
                                                                     const ProcessGroup& context,
                                                                     Module* model) {
  WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.SharedLane(context, LanePurpose::kContext));
  return std::unique_ptr<BufferSharder>(new BufferSharder(engine, context, model, lane));
}

absl::Status BufferSharder::CheckLists(const SequenceLayout& layout, size_t buffers, size_t seq_dims) const {
  if (buffers != seq_dims) {
    return absl::InvalidArgumentError(
        absl::StrCat(buffers, " buffers, but ", seq_dims, " sequence dims: give one for each buffer"));
  }
  if (layout.ranks() != context_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the layout is for ", layout.ranks(),
                                                   " ranks, but the context group has ", context_.size(),
                                                   ": make one for the group"));
  }
  return absl::OkStatus();
}

absl::Status BufferSharder::CheckNoParameter(const TensorView& buffer) const {
  if (model_ == nullptr) return absl::OkStatus();
  for (const std::shared_ptr<Parameter>& parameter : model_->AllParameters()) {
    if (parameter->data.data == nullptr || !Overlap(buffer, parameter->data)) continue;
    return absl::InvalidArgumentError(absl::StrCat("this is the data of parameter '", parameter->name,
                                                   "', which does not follow the sequence: shard parameters "
                                                   "with FullyShard, and leave them out here"));
  }
  return absl::OkStatus();
}

absl::Status BufferSharder::CheckBuffers(absl::Span<Tensor* const> buffers,
                                         absl::Span<Tensor* const> unrestored) const {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i] == nullptr || !buffers[i]->defined()) {
      return AnnotateBuffer(i,
                            absl::InvalidArgumentError("it is null or undefined: list defined tensors only"));
    }
    if (absl::c_count(buffers.first(i), buffers[i]) > 0) {
      return AnnotateBuffer(i, absl::InvalidArgumentError("it was listed before: list each buffer once"));
    }
    if (const absl::Status checked = CheckNoParameter(buffers[i]->view()); !checked.ok()) {
      return AnnotateBuffer(i, checked);
    }
  }
  for (size_t i = 0; i < unrestored.size(); ++i) {
    if (absl::c_count(buffers, unrestored[i]) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("unrestored buffer ", i, " is not among the buffers: list it there too"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardedBuffers> BufferSharder::ShardBuffers(const SequenceLayout& layout,
                                                           absl::Span<Tensor* const> buffers,
                                                           absl::Span<const int> seq_dims,
                                                           absl::Span<Tensor* const> unrestored) {
  if (open_) {
    return absl::FailedPreconditionError(
        "a scope of this sharder is open already: list all buffers in one scope, or end the other first");
  }
  WEFT_RETURN_IF_ERROR(CheckLists(layout, buffers.size(), seq_dims.size()));
  WEFT_RETURN_IF_ERROR(CheckBuffers(buffers, unrestored));
  std::vector<Tensor> parts;
  for (size_t i = 0; i < buffers.size(); ++i) {
    absl::StatusOr<Tensor> part = ExtractPart(buffers[i]->view(), seq_dims[i], layout, context_.group_rank);
    if (!part.ok()) return AnnotateBuffer(i, part.status());
    parts.push_back(*std::move(part));
  }
  std::vector<ShardedBuffers::Saved> saved;
  for (size_t i = 0; i < buffers.size(); ++i) {
    Tensor whole = std::exchange(*buffers[i], std::move(parts[i]));
    if (absl::c_count(unrestored, buffers[i]) == 0) saved.push_back({buffers[i], std::move(whole)});
  }
  open_ = true;
  return ShardedBuffers(open_, std::move(saved));
}

absl::StatusOr<std::vector<Tensor>> BufferSharder::UnshardBuffers(const SequenceLayout& layout,
                                                                  absl::Span<const Tensor> parts,
                                                                  absl::Span<const int> seq_dims) {
  WEFT_RETURN_IF_ERROR(CheckLists(layout, parts.size(), seq_dims.size()));
  std::vector<int> dims;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto dim = CheckPart(parts[i].view(), seq_dims[i], layout, context_.group_rank);
    if (!dim.ok()) return AnnotateBuffer(i, dim.status());
    dims.push_back(*dim);
  }
  std::vector<Tensor> whole;
  for (size_t i = 0; i < parts.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(whole.emplace_back(), Unshard(layout, parts[i].view(), dims[i]));
  }
  return whole;
}

absl::StatusOr<Tensor> BufferSharder::Unshard(const SequenceLayout& layout, const TensorView& part, int dim) {
  Shape shape = part.shape;
  shape[static_cast<size_t>(dim)] = layout.tokens();
  Tensor whole = Tensor::Empty(part.dtype, shape);
  WEFT_ASSIGN_OR_RETURN(Tensor gathered, PoolTensor(pool_, part.dtype, {whole.elements()}));
  auto* memory = static_cast<std::byte*>(gathered.view().data);
  const std::vector<TensorView> parts = PartsInRankOrder(memory, part.dtype, shape, dim, layout);
  const TensorView& own = parts[static_cast<size_t>(context_.group_rank)];
  WEFT_RETURN_IF_ERROR(StridedCopy(part, own));
  std::vector<int64_t> counts;
  counts.reserve(parts.size());
  for (const TensorView& of_rank : parts) counts.push_back(of_rank.elements());
  OpOptions options;
  options.priority = Priority::kCritical;
  options.label = "unshard_buffers";
  Work work = engine_.AllGather(lane_, own.data, memory, part.dtype, whole.elements(), counts, options);
  // Keeps the memory as long as peers may use it, also if the gather fails.
  PendingTensor pending(std::move(gathered), std::move(work), {});
  WEFT_RETURN_IF_ERROR(pending.Wait().status());
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    WEFT_RETURN_IF_ERROR(InsertPart(parts[static_cast<size_t>(rank)], dim, layout, rank, whole.view()));
  }
  return whole;
}

}  // namespace weft
