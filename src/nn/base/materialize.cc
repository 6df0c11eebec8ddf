#include "weft/nn/materialize.h"

#include <vector>

#include "weft/core/strided_copy.h"
#include "weft/nn/initialize.h"

namespace weft {

MaterializedParameters::MaterializedParameters(Module& module, uint64_t seed, DType data_dtype,
                                               DType grad_dtype)
    : parameters_(module.AllParameters()) {
  std::vector<float> values;
  for (const std::shared_ptr<Parameter>& parameter : parameters_) {
    values.resize(static_cast<size_t>(parameter->elements()));
    FillInitialValues(*parameter, seed, 0, parameter->elements(), values.data());
    const Tensor data = storage_.emplace_back(Tensor::Empty(data_dtype, parameter->shape));
    ConvertRun(values.data(), DType::kF32, data.view().data, data_dtype, parameter->elements());
    parameter->data = data.view();
    if (parameter->requires_grad) {
      parameter->grad = storage_.emplace_back(Tensor::Empty(grad_dtype, parameter->shape)).view();
      parameter->grad_written = false;
    }
  }
}

MaterializedParameters::~MaterializedParameters() {
  for (const std::shared_ptr<Parameter>& parameter : parameters_) {
    parameter->data.data = nullptr;
    parameter->grad.data = nullptr;
  }
}

void MaterializedParameters::ClearGradients() {
  for (const std::shared_ptr<Parameter>& parameter : parameters_) parameter->grad_written = false;
}

}  // namespace weft
