#include "weft/nn/position_embedding.h"

#include <utility>
#include <vector>

#include "src/nn/base/module_checks.h"
#include "src/nn/base/row_gradients.h"
#include "src/nn/base/sequence_runs.h"
#include "src/nn/base/shapes.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

template <typename T>
void AddRows(const T* __restrict x, const T* __restrict row, int64_t dim, T* __restrict y) {
  for (int64_t i = 0; i < dim; ++i) y[i] = Round<T>(Load(x[i]) + Load(row[i]));
}

}  // namespace

PositionEmbedding::PositionEmbedding(std::string name, int64_t positions, int64_t dim,
                                     Initializer initializer)
    : Module(std::move(name)), positions_(positions), dim_(dim) {
  AddParameter("weight", {positions, dim}, initializer);
}

absl::StatusOr<Tensors> PositionEmbedding::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckForward(*this, inputs, dim_));
  const Tensor& x = inputs[0];
  WEFT_RETURN_IF_ERROR(CheckActivation(*this, x, 3));
  WEFT_ASSIGN_OR_RETURN(const TokenRuns runs, SequenceRuns(invocation, x.dim(1), name()));
  if (const int64_t end = PositionEnd(runs); end > positions_) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": the sequence has ", end, " positions, the table ", positions_,
                     "; use shorter sequences, or a model with more positions"));
  }
  const std::vector<int64_t> positions = Positions(runs);
  const TensorView& table = UnshardedData(*parameters()[0], x.dtype());
  Tensor y = Tensor::Empty(x.dtype(), x.shape());
  WithElementType(x.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(Rows(x), RowGrain(dim_), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t position = positions[static_cast<size_t>(token) % positions.size()];
        AddRows(x.As<T>() + token * dim_, table.As<T>() + position * dim_, dim_, y.As<T>() + token * dim_);
      }
    });
  });
  return Tensors{std::move(y)};
}

absl::StatusOr<Tensors> PositionEmbedding::BackwardImpl(Invocation& invocation,
                                                        const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckContiguousGradients(*this, output_gradients, 1));
  const Tensor& dy = output_gradients[0];
  if (!parameters()[0]->requires_grad) return output_gradients;
  WEFT_ASSIGN_OR_RETURN(const TokenRuns runs, SequenceRuns(invocation, dy.dim(1), name()));
  const std::vector<int64_t> positions = Positions(runs);
  std::vector<int32_t> rows;
  for (int64_t row = 0; row < dy.dim(0); ++row) rows.insert(rows.end(), positions.begin(), positions.end());
  AddRowGradients(dy, rows, 1.0F, *parameters()[0]);
  return output_gradients;
}

}  // namespace weft
