// A trainable tensor of a module: a name, a shape and two views, data and gradient, which whoever owns the
// memory sets and rebases (the sharding engine, or MaterializeParameters for a model on one rank).
#pragma once

#include <cstdint>
#include <string>

#include "weft/core/tensor_view.h"

namespace weft {

// How a parameter starts. Values come from a counter-based generator keyed by (seed, name, element index), so
// that any range can be made alone and the result does not depend on the mesh.
struct Initializer {
  enum class Kind : uint8_t { kConstant, kNormal } kind = Kind::kNormal;
  float mean = 0.0F;  // Also the value of kConstant.
  float stddev = 0.02F;
};

struct Parameter {
  std::string name;  // As in a Hugging Face checkpoint: "model.layers.0.self_attn.q_proj.weight".
  Shape shape;       // Row-major; a linear weight is [out_features, in_features].
  Initializer initializer;
  bool requires_grad = true;

  TensorView data;  // Undefined (null) while sharded. Dtype: the compute dtype.
  TensorView grad;  // Undefined unless gradients are being collected. f32 or bf16, independently of data.
  // Whether `grad` holds a sum already. The first product of a period writes (beta 0), the next ones add
  // (beta 1), so that nothing is zero-filled. Whoever hands out `grad` clears it.
  bool grad_written = false;

  int64_t elements() const { return ElementCount(shape); }
  // The beta of the product that writes into `grad` now: 0 the first time, then 1.
  float TakeGradBeta() {
    const float beta = grad_written ? 1.0F : 0.0F;
    grad_written = true;
    return beta;
  }
};

}  // namespace weft
