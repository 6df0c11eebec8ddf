// Parts of exchanges: strided tensors with random shapes and layouts, and with gaps. The value of each
// element identifies its sender, its receiver and its index.
#pragma once

#include <cstdint>
#include <random>

#include <absl/status/statusor.h>

#include "tests/comm/support/engine_fixture.h"

namespace weft::testing {

// Draws the shape of the part that rank `from` sends to rank `to` in exchange number `seed`. It has up to
// five dims and at most `max_elements` elements, and may be empty. All ranks draw the same shape.
Shape DrawPartShape(uint64_t seed, int from, int to, int64_t max_elements = 2000);

// A part in the memory of its sender or its receiver. Each rank draws its own order of dims and its own gaps.
class StridedPart {
 public:
  // `random` is private to this rank.
  static absl::StatusOr<StridedPart> Make(BufferPool& pool, bool in_node_memory, DType dtype,
                                          const Shape& shape, std::mt19937_64& random);

  const TensorView& view() const { return view_; }
  // Fills the part from rank `from` to rank `to`. Element i of the row-major order is a hash of from, to and
  // i.
  void Fill(int from, int to);
  // Checks the values of Fill. Errors: kDataLoss (an element is wrong, or a gap was written).
  absl::Status Check(int from, int to);

 private:
  template <typename Visit>
  void ForEachElement(const Visit& visit);
  std::byte* base() { return static_cast<std::byte*>(view_.data); }

  TestBuffer memory_;
  TensorView view_;
  int64_t memory_elements_ = 0;  // Gaps included.
};

}  // namespace weft::testing
