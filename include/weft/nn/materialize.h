// Memory and initial values for a model that is whole on one rank.
//
// Thread safety: none; belongs to the thread that drives the model.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "weft/core/dtype.h"
#include "weft/nn/module.h"

namespace weft {

// Allocates the data of every parameter below `module`, and the gradients of those with `requires_grad`.
// Fills the data with the initial values for `seed`, rounded to `data_dtype`. Gradients start unwritten: the
// first backward overwrites them. In PyTorch's terms: a module on the meta device, then `to_empty()` and
// `reset_parameters()`.
//
// Lifetime: this object owns the memory. Its destructor resets the parameters' views to null.
class [[nodiscard]] MaterializedParameters {
 public:
  // REQUIRES: both dtypes are f32, bf16 or f16.
  MaterializedParameters(Module& module, uint64_t seed, DType data_dtype, DType grad_dtype);
  ~MaterializedParameters();
  MaterializedParameters(MaterializedParameters&&) noexcept = default;
  MaterializedParameters& operator=(MaterializedParameters&&) = delete;

  // Marks all gradients as unwritten, so that the next backward overwrites them (`optimizer.zero_grad()`).
  void ClearGradients();

 private:
  std::vector<std::shared_ptr<Parameter>> parameters_;
  std::vector<Tensor> storage_;
};

}  // namespace weft
