#include "sharding/plan/parameter_views.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

bool IsForeign(const TensorView& held, const TensorView& place) {
  return held.data != nullptr && held.data != place.data;
}

std::string TextOf(const TensorView& view) {
  return absl::StrCat(ToAbsl(Name(view.dtype)), " ", ToString(view.shape));
}

}  // namespace

TensorView FlatImage::At(int parameter) const {
  const int64_t bytes = BytesOf(layout.image_offset(parameter), dtype);
  return TensorView::Contiguous(static_cast<std::byte*>(base) + bytes, dtype,
                                layout.parameters()[static_cast<size_t>(parameter)].shape);
}

absl::Status CheckDataStorage(const Parameters& parameters, DType dtype) {
  for (const std::shared_ptr<Parameter>& parameter : parameters) {
    const TensorView& data = parameter->data;
    if (data.data == nullptr || (data.dtype == dtype && data.shape == parameter->shape)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter '", parameter->name, "' was given storage of ", TextOf(data),
                     ", but its values are ", ToAbsl(Name(dtype)), " ", ToString(parameter->shape),
                     ": give it storage of that dtype and shape, or set its data to null"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ViewData(const Parameters& parameters, const FlatImage& image) {
  WEFT_RETURN_IF_ERROR(CheckDataStorage(parameters, image.dtype));
  int64_t copied_bytes = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = *parameters[i];
    TensorView place = image.At(static_cast<int>(i));
    if (IsForeign(parameter.data, place)) {
      WEFT_RETURN_IF_ERROR(StridedCopy(place, parameter.data));
      copied_bytes += static_cast<int64_t>(place.bytes());
    } else {
      parameter.data = std::move(place);
    }
  }
  return copied_bytes;
}

void ForgetData(const Parameters& parameters, const FlatImage& image) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    TensorView& data = parameters[i]->data;
    if (!IsForeign(data, image.At(static_cast<int>(i)))) data.data = nullptr;
  }
}

void ViewGradients(const Parameters& parameters, const FlatImage& image) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = *parameters[i];
    if (parameter.grad.data != nullptr) continue;
    parameter.grad = image.At(static_cast<int>(i));
    if (!parameter.requires_grad || !image.layout.parameters()[i].trainable) parameter.grad.data = nullptr;
    parameter.grad_written = false;
  }
}

std::vector<bool> GradientsWritten(const Parameters& parameters, const FlatImage& image) {
  std::vector<bool> written(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    if (!image.layout.parameters()[i].trainable || parameter.grad.data == nullptr) continue;
    written[i] = parameter.grad_written || IsForeign(parameter.grad, image.At(static_cast<int>(i)));
  }
  return written;
}

absl::StatusOr<int64_t> CollectGradients(const Parameters& parameters, const FlatImage& image) {
  for (const std::shared_ptr<Parameter>& parameter : parameters) {
    const TensorView& grad = parameter->grad;
    if (grad.data == nullptr || (grad.shape == parameter->shape && IsFloating(grad.dtype))) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the gradient of parameter '", parameter->name, "' was replaced by ", TextOf(grad),
                     ": its shape must stay ", ToString(parameter->shape), ", and its dtype floating-point"));
  }
  int64_t copied_bytes = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!image.layout.parameters()[i].trainable) continue;
    const Parameter& parameter = *parameters[i];
    const TensorView place = image.At(static_cast<int>(i));
    if (IsForeign(parameter.grad, place)) {
      WEFT_RETURN_IF_ERROR(StridedCopy(parameter.grad, place));
      copied_bytes += static_cast<int64_t>(place.bytes());
    } else if (parameter.grad.data == nullptr || !parameter.grad_written) {
      std::memset(place.data, 0, place.bytes());
    }
  }
  return copied_bytes;
}

void ForgetGradients(const Parameters& parameters) {
  for (const std::shared_ptr<Parameter>& parameter : parameters) {
    parameter->grad.data = nullptr;
    parameter->grad_written = false;
  }
}

}  // namespace weft
