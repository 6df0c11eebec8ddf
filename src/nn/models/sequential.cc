#include "weft/nn/sequential.h"

#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/nn/base/module_checks.h"
#include "src/nn/base/residual.h"

namespace weft {
namespace {

// Registers `residual` as a reader of a tensor while it lives. See Invocation::AddReader.
class ReaderScope {
 public:
  ReaderScope(Invocation& invocation, const Module& residual, Tensor tensor)
      : invocation_(invocation),
        tensor_(std::move(tensor)),
        use_(absl::StrCat("a tensor that the residual connection '", residual.name(),
                          "' adds after its children have run; let an earlier child write to new memory")) {
    invocation_.AddReader(tensor_, &use_);
  }
  ~ReaderScope() { invocation_.RemoveReader(tensor_, &use_); }
  ReaderScope(const ReaderScope&) = delete;
  ReaderScope& operator=(const ReaderScope&) = delete;

 private:
  Invocation& invocation_;
  const Tensor tensor_;
  const std::string use_;
};

// a + b in new memory. The terms are not overwritten, because the modules that returned them may have saved
// them. REQUIRES: b is contiguous.
Tensors Sum(const Tensor& a, const Tensor& b) {
  const Tensor sum = a.Copy();
  AddInPlace(sum, b);
  return {sum};
}

}  // namespace

absl::StatusOr<Tensors> Sequential::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  Tensors tensors = inputs;
  for (Module* child : children()) {
    WEFT_ASSIGN_OR_RETURN(tensors, child->Forward(invocation, std::move(tensors)));
  }
  return tensors;
}

absl::StatusOr<Tensors> Sequential::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  Tensors tensors = output_gradients;
  for (auto child = children().rbegin(); child != children().rend(); ++child) {
    WEFT_ASSIGN_OR_RETURN(tensors, (*child)->Backward(invocation, std::move(tensors)));
  }
  return tensors;
}

absl::StatusOr<Tensors> Residual::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 1));
  WEFT_RETURN_IF_ERROR(CheckActivation(*this, inputs[0]));
  const ReaderScope reader(invocation, *this, inputs[0]);
  WEFT_ASSIGN_OR_RETURN(const Tensors outputs, Sequential::ForwardImpl(invocation, inputs));
  if (outputs.size() != 1 || outputs[0].shape() != inputs[0].shape() ||
      outputs[0].dtype() != inputs[0].dtype()) {
    std::string shapes;
    for (const Tensor& output : outputs) {
      absl::StrAppend(&shapes, " ", ToString(output.shape()), " of ", ToAbsl(Name(output.dtype())));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        name(), ": input ", ToString(inputs[0].shape()), " of ", ToAbsl(Name(inputs[0].dtype())),
        " cannot be added to what the children make of it:", shapes, "; they must keep shape and dtype"));
  }
  return Sum(outputs[0], inputs[0]);
}

absl::StatusOr<Tensors> Residual::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckContiguousGradients(*this, output_gradients, 1));
  const ReaderScope reader(invocation, *this, output_gradients[0]);
  WEFT_ASSIGN_OR_RETURN(const Tensors gradients, Sequential::BackwardImpl(invocation, output_gradients));
  return Sum(gradients[0], output_gradients[0]);
}

}  // namespace weft
