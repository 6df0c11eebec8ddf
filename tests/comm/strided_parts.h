// Parts of exchanges: strided tensors drawn from a seed, in memory with gaps, whose every element says whose
// it is.
#pragma once

#include <cstdint>
#include <random>

#include <absl/status/statusor.h>

#include "tests/comm/engine_fixture.h"

namespace weft::testing {

// The shape of what rank `from` sends rank `to` in exchange number `seed`: of up to five dims, some empty,
// of so many elements at most. All ranks draw the same.
Shape DrawPartShape(uint64_t seed, int from, int to, int64_t most_elements = 2000);

// One rank's side of a part: its dims lie in an order of this rank's own, with gaps between elements.
class StridedPart {
 public:
  // `random` is this rank's.
  static absl::StatusOr<StridedPart> Make(BufferPool& pool, bool in_node_memory, DType dtype,
                                          const Shape& shape, std::mt19937_64& random);

  const TensorView& view() const { return view_; }
  // What rank `from` has for rank `to`: element i of the row-major order is a hash of all three.
  void Fill(int from, int to);
  // Errors: kDataLoss (an element that is not what Fill gives, or a gap that was written).
  absl::Status Check(int from, int to);

 private:
  template <typename Visit>
  void ForEachElement(const Visit& visit);
  std::byte* base() { return static_cast<std::byte*>(view_.data); }

  TestBuffer memory_;
  TensorView view_;
  int64_t room_ = 0;  // Elements, gaps included.
};

}  // namespace weft::testing
