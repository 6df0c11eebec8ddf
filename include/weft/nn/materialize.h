// Memory and initial values for a model that lives whole on one rank.
#pragma once

#include <cstdint>

#include "weft/core/dtype.h"
#include "weft/nn/module.h"

namespace weft {

// Gives every parameter below `module` its own data and, where it is trained, its own gradient, and fills the
// data with the initial values of `seed`, rounded to `data_dtype`. Gradients start unwritten. The memory
// belongs to the returned object: the views are valid while it lives.
class [[nodiscard]] MaterializedParameters {
 public:
  // Dtypes: f32 or bf16.
  MaterializedParameters(Module& module, uint64_t seed, DType data_dtype, DType grad_dtype);
  ~MaterializedParameters();
  MaterializedParameters(MaterializedParameters&&) noexcept = default;
  MaterializedParameters& operator=(MaterializedParameters&&) = delete;

  // Begins a new period of gradient accumulation: the next backward overwrites.
  void ClearGradients();

 private:
  std::vector<std::shared_ptr<Parameter>> parameters_;
  std::vector<Tensor> storage_;
};

}  // namespace weft
