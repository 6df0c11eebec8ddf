// Views of a group's parameters into its flat image, and handling of storage that callers gave to parameters.
//
// See Note [Foreign storage] in sharding/group/param_group.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/nn/parameter.h"
#include "weft/sharding/flat_layout.h"

namespace weft {

// A flat image of a group's parameters, or of their gradients.
struct FlatImage {
  const FlatLayout& layout;
  void* base;
  DType dtype;

  // View of a parameter's place, in the parameter's shape.
  TensorView At(int parameter) const;
};

using Parameters = std::vector<std::shared_ptr<Parameter>>;

// OK if every parameter's data is null, or has the parameter's shape and `dtype`.
// Errors: kFailedPrecondition (names the parameter, its storage, and the remedy).
absl::Status CheckDataStorage(const Parameters& parameters, DType dtype);
// Makes parameters view the image; copies the values of a parameter that has storage of its own. Returns the
// bytes that it has copied.
// Errors: as CheckDataStorage; then no parameter has changed.
absl::StatusOr<int64_t> ViewData(const Parameters& parameters, const FlatImage& image);
// Removes the views of the image. Foreign storage stays.
void ForgetData(const Parameters& parameters, const FlatImage& image);

// Makes the gradients of trainable parameters that require and lack them view the gradient image, unwritten.
void ViewGradients(const Parameters& parameters, const FlatImage& image);
// True for each parameter whose gradient backward has written since ViewGradients, or replaced.
std::vector<bool> GradientsWritten(const Parameters& parameters, const FlatImage& image);
// Completes the image: writes zeros for a parameter without a gradient, and copies a gradient that replaced
// its view. Returns the bytes that it has copied.
// Errors: kFailedPrecondition (a replacement of another shape or of a dtype that is not floating-point); then
// nothing has changed.
absl::StatusOr<int64_t> CollectGradients(const Parameters& parameters, const FlatImage& image);
void ForgetGradients(const Parameters& parameters);

}  // namespace weft
