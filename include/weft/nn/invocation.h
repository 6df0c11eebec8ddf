// One microbatch's pass through a model: what its modules saved for backward, and facts that hold for all of
// them. Several invocations of one model can be in flight.
//
// Thread safety: none; one thread drives an invocation.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>

#include "weft/core/tensor.h"

namespace weft {

class Module;
using Tensors = absl::InlinedVector<Tensor, 2>;

class Invocation {
 public:
  // `gradients`: whether backward will follow. Without it modules save nothing. `loss_scale` multiplies the
  // loss of every target: 1 / (targets of the whole step, over all ranks and microbatches) makes the parts'
  // sum a mean.
  explicit Invocation(bool gradients = true, float loss_scale = 1.0F)
      : gradients_(gradients), loss_scale_(loss_scale) {}

  bool gradients() const { return gradients_; }
  float loss_scale() const { return loss_scale_; }

  // What `module` needs in backward. A module that is called several times saves once a call; backward takes
  // them back in reverse order of the calls.
  void Save(const Module* module, Tensors tensors) { saved_[module].push_back(std::move(tensors)); }
  Tensors TakeSaved(const Module* module);
  // True when every save has been taken back.
  bool empty() const { return saved_.empty(); }

 private:
  bool gradients_;
  float loss_scale_;
  absl::flat_hash_map<const Module*, std::vector<Tensors>> saved_;
};

}  // namespace weft
