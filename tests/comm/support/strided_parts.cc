#include "tests/comm/support/strided_parts.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tests/comm/support/random_values.h"

namespace weft::testing {
namespace {

constexpr int kGap = 0x5A;  // Value of all bytes that belong to no element.

uint64_t ElementBits(int from, int to, int64_t element) {
  return RandomBits(from * 1009 + to, element + 1) | 1;  // Never all zeros.
}

}  // namespace

Shape DrawPartShape(uint64_t seed, int from, int to, int64_t max_elements) {
  std::mt19937_64 random(seed * 7919 + static_cast<uint64_t>(from) * 131 + static_cast<uint64_t>(to));
  constexpr int64_t kSizes[] = {1, 2, 3, 5, 8, 13};
  Shape shape(random() % 6);
  int64_t elements = 1;
  for (int64_t& size : shape) {
    size = random() % 24 == 0 ? 0 : kSizes[random() % std::size(kSizes)];
    if (elements * size > max_elements) size = 1;
    elements *= size;
  }
  return shape;
}

absl::StatusOr<StridedPart> StridedPart::Make(BufferPool& pool, bool in_node_memory, DType dtype,
                                              const Shape& shape, std::mt19937_64& random) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
  StridedPart part;
  part.view_ = {nullptr, dtype, shape, Shape(shape.size())};
  int64_t stride = random() % 3 == 0 ? 2 : 1;
  for (size_t i = order.size(); i-- > 0;) {
    part.view_.strides[order[i]] = stride;
    stride *= std::max<int64_t>(shape[order[i]], 1);
    if (random() % 3 == 0) stride += static_cast<int64_t>(random() % 4);
  }
  part.memory_elements_ = stride + 1;
  WEFT_ASSIGN_OR_RETURN(part.memory_, TestBuffer::Make(pool, in_node_memory, dtype, part.memory_elements_));
  part.view_.data = part.memory_.data();
  std::memset(part.base(), kGap, static_cast<size_t>(BytesOf(part.memory_elements_, dtype)));
  return part;
}

// Calls visit(offset, element) with the offset in memory, in elements, and the row-major index.
template <typename Visit>
void StridedPart::ForEachElement(const Visit& visit) {
  for (int64_t element = 0; element < view_.elements(); ++element) {
    int64_t rest = element;
    int64_t offset = 0;
    for (size_t dim = view_.shape.size(); dim-- > 0;) {
      offset += rest % view_.shape[dim] * view_.strides[dim];
      rest /= view_.shape[dim];
    }
    visit(offset, element);
  }
}

void StridedPart::Fill(int from, int to) {
  const size_t bytes = SizeOf(view_.dtype);
  ForEachElement([&](int64_t offset, int64_t element) {
    const uint64_t bits = ElementBits(from, to, element);
    std::memcpy(base() + static_cast<size_t>(offset) * bytes, &bits, bytes);
  });
}

absl::Status StridedPart::Check(int from, int to) {
  const size_t bytes = SizeOf(view_.dtype);
  std::vector<std::byte> expected(static_cast<size_t>(memory_elements_) * bytes,
                                  static_cast<std::byte>(kGap));
  ForEachElement([&](int64_t offset, int64_t element) {
    const uint64_t bits = ElementBits(from, to, element);
    std::memcpy(expected.data() + static_cast<size_t>(offset) * bytes, &bits, bytes);
  });
  if (std::memcmp(expected.data(), base(), expected.size()) == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the part of shape ", ToString(view_.shape), " from rank ", from,
                                          " to rank ", to, " is wrong, or its surroundings were written"));
}

}  // namespace weft::testing
