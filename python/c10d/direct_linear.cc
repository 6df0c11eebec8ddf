#include "python/c10d/direct_linear.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <tuple>
#include <utility>

namespace py = pybind11;

namespace weft::python {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A Python function that a node of autograd's graph holds. Threads without the GIL free the graph.
class GradientTarget : public torch::CustomClassHolder {
 public:
  explicit GradientTarget(py::function begin_write) : begin_write_(std::move(begin_write)) {}
  ~GradientTarget() override {
    if (Py_IsInitialized() == 0) {
      begin_write_.release();
      return;
    }
    const py::gil_scoped_acquire acquired;
    begin_write_ = py::function();
  }

  std::tuple<at::Tensor, bool> BeginWrite() const {
    const py::gil_scoped_acquire acquired;
    return py::cast<std::tuple<at::Tensor, bool>>(begin_write_());
  }

 private:
  py::function begin_write_;
};

at::Tensor AsRows(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

class DirectLinear : public torch::autograd::Function<DirectLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            c10::intrusive_ptr<GradientTarget> target) {
    context->save_for_backward({x, x.requires_grad() ? weight : at::Tensor()});
    context->saved_data["has_bias"] = bias.has_value();  // Otherwise it is no input of the graph.
    context->saved_data["target"] = c10::IValue::make_capsule(std::move(target));
    const at::Tensor output = at::linear(x, weight, bias);
    // A view that a function returns must not be changed in place, which the caller may do.
    return output.is_view() ? at::_unsafe_view(output, output.sizes()) : output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& gradient = gradients[0];
    const at::Tensor rows = AsRows(gradient);
    // False in torch.autograd.grad for other tensors.
    if (context->needs_input_grad(1)) WriteGradient(context, rows, AsRows(saved[0]));
    variable_list results(4);
    if (context->needs_input_grad(0)) results[0] = gradient.matmul(saved[1]);
    const bool has_bias = context->saved_data["has_bias"].toBool();
    if (has_bias && context->needs_input_grad(2)) results[2] = rows.sum(0);
    return results;
  }

 private:
  static void WriteGradient(AutogradContext* context, const at::Tensor& rows, const at::Tensor& inputs) {
    const auto target =
        c10::static_intrusive_pointer_cast<GradientTarget>(context->saved_data["target"].toCapsule());
    auto [place, accumulates] = target->BeginWrite();
    const at::NoGradGuard no_grad;  // With create_graph, too: no graph leads through the gradient image.
    if (accumulates) {
      place.addmm_(rows.t(), inputs);
    } else {
      at::mm_out(place, rows.t(), inputs);
    }
  }
};

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                  py::function begin_write) {
  auto target = c10::make_intrusive<GradientTarget>(std::move(begin_write));
  const py::gil_scoped_release released;
  return DirectLinear::apply(x, weight, bias, std::move(target));
}

}  // namespace

void BindDirectLinear(py::module_& module) {
  module.def("direct_linear", &Linear, py::arg("x"), py::arg("weight"), py::arg("bias").none(true),
             py::arg("begin_write"));
}

}  // namespace weft::python
