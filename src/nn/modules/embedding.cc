#include "weft/nn/embedding.h"

#include <cstring>
#include <utility>

#include "src/nn/base/module_checks.h"
#include "src/nn/base/row_gradients.h"
#include "src/nn/base/shapes.h"
#include "src/nn/kernels/token_ids.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// The scale in the precision of a dtype.
template <typename T>
float Rounded(float scale) {
  return Load(Round<T>(scale));
}

template <typename T>
void ScaleRow(T* row, int64_t dim, float scale) {
  for (int64_t i = 0; i < dim; ++i) row[i] = Round<T>(Load(row[i]) * scale);
}

}  // namespace

Embedding::Embedding(std::string name, int64_t vocab_size, int64_t dim, Initializer initializer, float scale)
    : Module(std::move(name)), vocab_size_(vocab_size), dim_(dim), scale_(scale) {
  AddParameter("weight", {vocab_size, dim}, initializer);
}

absl::StatusOr<Tensors> Embedding::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 1));
  WEFT_RETURN_IF_ERROR(CheckParameters(*this, parameters()[0]->data.dtype));
  const Tensor& ids = inputs[0];
  WEFT_RETURN_IF_ERROR(CheckTokenIds(ids, vocab_size_, name()));
  const TensorView& table = UnshardedData(*parameters()[0], parameters()[0]->data.dtype);
  Shape shape = ids.shape();
  shape.push_back(dim_);
  Tensor output = Tensor::Empty(table.dtype, std::move(shape));
  const size_t row_bytes = static_cast<size_t>(BytesOf(dim_, table.dtype));
  ParallelFor(ids.elements(), RowGrain(dim_), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto id = static_cast<size_t>(ids.As<int32_t>()[i]);
      std::memcpy(static_cast<char*>(output.view().data) + static_cast<size_t>(i) * row_bytes,
                  static_cast<const char*>(table.data) + id * row_bytes, row_bytes);
    }
  });
  if (scale_ != 1.0F) {
    WithElementType(output.dtype(), [&](auto element) {
      using T = decltype(element);
      ParallelFor(ids.elements(), RowGrain(dim_), [&](int64_t begin, int64_t end) {
        ScaleRow(output.As<T>() + begin * dim_, (end - begin) * dim_, Rounded<T>(scale_));
      });
    });
  }
  if (invocation.is_saving()) invocation.Save(this, {ids});
  return Tensors{std::move(output)};
}

absl::StatusOr<Tensors> Embedding::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckContiguousGradients(*this, output_gradients, 1));
  const Tensor ids = invocation.PopSaved(this)[0];
  const Tensor& dy = output_gradients[0];
  Parameter& parameter = *parameters()[0];
  if (!parameter.requires_grad) return Tensors{Tensor()};
  WithElementType(dy.dtype(), [&](auto element) {
    AddRowGradients(dy, {ids.As<int32_t>(), static_cast<size_t>(ids.elements())},
                    Rounded<decltype(element)>(scale_), parameter);
  });
  return Tensors{Tensor()};
}

}  // namespace weft
