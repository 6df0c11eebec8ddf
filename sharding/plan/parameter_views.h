// How the parameters of a group come to view its flat image, and how storage that others gave them is
// respected. See Note [Foreign storage] in param_group.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "weft/nn/parameter.h"
#include "weft/sharding/flat_layout.h"

namespace weft {

// An image of a group's parameters at some address.
struct FlatImage {
  const FlatLayout& layout;
  void* base;
  DType dtype;

  // The place of a parameter, which has this shape.
  TensorView At(int parameter) const;
};

using Parameters = std::vector<std::shared_ptr<Parameter>>;

// What came of giving views: bytes that had to be copied, and why (empty: none).
struct FallbackReport {
  int64_t copied_bytes = 0;
  std::string reason;
};

// Whether every parameter's data can hold the values: it is null, or of the parameter's shape and `dtype`.
// Errors: kFailedPrecondition (names the parameter, what it holds, and the remedy).
absl::Status CheckDataStorage(const Parameters& parameters, DType dtype);
// Parameters view the image; where one has other storage, its values are copied there. All or none: on an
// error (as above) no parameter has been touched.
absl::StatusOr<FallbackReport> ViewData(const Parameters& parameters, const FlatImage& image);
// Takes the views of the image away; foreign storage stays.
void ForgetData(const Parameters& parameters, const FlatImage& image);

// Trainable parameters that require gradients view the gradient image, unwritten.
void ViewGradients(const Parameters& parameters, const FlatImage& image);
// Makes the image hold the gradient of every trainable parameter: zero where none was written, copied where a
// view has been replaced. Errors: kFailedPrecondition (a replacement of another shape or a dtype that is not
// floating), and nothing has changed.
absl::StatusOr<FallbackReport> CollectGradients(const Parameters& parameters, const FlatImage& image);
void ForgetGradients(const Parameters& parameters);

}  // namespace weft
