#include "src/comm/base/part_shape.h"

#include <algorithm>

#include "weft/core/status.h"

namespace weft {

bool IsEmptyPart(const TensorView& view) {
  return (view.data == nullptr && view.shape.empty()) || view.elements() == 0;
}

PartShape PartShape::Of(const TensorView& view) {
  if (IsEmptyPart(view)) return {};
  WEFT_CHECK(view.shape.size() <= kMaxDims, "a part has more than PartShape::kMaxDims dims");
  PartShape shape;
  shape.dims = static_cast<int32_t>(view.shape.size());
  std::copy(view.shape.begin(), view.shape.end(), shape.sizes.begin());
  return shape;
}

}  // namespace weft
