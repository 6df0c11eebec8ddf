#include "src/nn/residual.h"

#include "src/nn/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

constexpr int64_t kGrain = int64_t{32} * 1024;

template <typename T>
void AddRun(T* __restrict target, const T* __restrict addend, int64_t count) {
  for (int64_t i = 0; i < count; ++i) target[i] = Round<T>(Load(target[i]) + Load(addend[i]));
}

}  // namespace

void AddInPlace(const Tensor& target, const Tensor& addend) {
  WEFT_CHECK(target.shape() == addend.shape() && target.dtype() == addend.dtype(),
             "a residual's parts differ in shape or dtype");
  WithElementType(target.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(target.elements(), kGrain, [&](int64_t begin, int64_t end) {
      AddRun(target.As<T>() + begin, addend.As<T>() + begin, end - begin);
    });
  });
}

}  // namespace weft
