#include "src/nn/kernels/token_ids.h"

#include <absl/strings/str_cat.h>

namespace weft {

absl::Status CheckTokenIds(const Tensor& ids, int64_t vocab_size, const std::string& what, int32_t lowest) {
  if (ids.dtype() != DType::kI32 || !ids.view().IsContiguous()) {
    return absl::InvalidArgumentError(absl::StrCat(what, " must be a contiguous tensor of i32"));
  }
  const auto* values = ids.As<int32_t>();
  for (int64_t i = 0; i < ids.elements(); ++i) {
    if (values[i] < lowest || values[i] >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": token ", values[i], " at position ", i,
                                                     " is outside the vocabulary of ", vocab_size,
                                                     "; use the tokenizer that belongs to the model"));
    }
  }
  return absl::OkStatus();
}

}  // namespace weft
