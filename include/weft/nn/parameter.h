// Trainable tensor of a module: a name, a shape, and views of its data and of its gradient. The owner of the
// memory sets both views: a ShardedModel, or MaterializedParameters for a model that is whole on one rank.
//
// Thread safety: none; one thread drives a model.
#pragma once

#include <cstdint>
#include <string>

#include "weft/core/tensor_view.h"

namespace weft {

// Distribution of a parameter's initial values. FillInitialValues draws them with a counter-based generator
// that is keyed by (seed, name, element index). Any range can therefore be drawn alone, and the values do not
// depend on the mesh.
struct Initializer {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform } kind = Kind::kNormal;
  float mean = 0.0F;     // The value itself for kConstant.
  float stddev = 0.02F;  // kUniform: of the distribution, whose values lie within sqrt(3) stddev of the mean.
};

struct Parameter {
  // As in a Hugging Face checkpoint: "model.layers.0.self_attn.q_proj.weight". That of an adapter is as in a
  // checkpoint of PEFT: "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
  std::string name;
  Shape shape;  // Row-major; a linear weight is [out_features, in_features].
  Initializer initializer;
  bool requires_grad = true;

  TensorView data;  // Undefined (null) while sharded. In the compute dtype.
  TensorView grad;  // Undefined without memory for a gradient. Its dtype is independent of data's.
  // True if `grad` holds a gradient. The first matrix product after a reset overwrites `grad` (beta 0), later
  // ones add to it (beta 1), so that it need not be zero-filled. The owner of the memory resets this flag.
  bool grad_written = false;
  // Name of the group that shards the parameter; empty if none does. Set by the group while it lives.
  std::string sharded_by;

  int64_t elements() const { return ElementCount(shape); }
  // Returns the beta for a write of `grad` (0 if `grad` holds nothing, then 1), and marks `grad` as written.
  float BeginGradWrite() {
    const float beta = grad_written ? 1.0F : 0.0F;
    grad_written = true;
    return beta;
  }
};

}  // namespace weft
