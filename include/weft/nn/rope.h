// Rotary position embedding (Su et al., "RoFormer", 2021, section 3.2) in the rotate-half layout of Hugging
// Face checkpoints: element i of a head forms a pair with element i + head_dim / 2, and the pair is rotated
// by the angle position * frequency(i).
//
// Rope is the module. The Rope modules of a model share one RopeTable.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/nn/module.h"

namespace weft {

// Frequency scaling of Llama 3.1, for contexts longer than those of the first training (rope_type "llama3" in
// a config.json of Hugging Face).
struct Llama3RopeScaling {
  float factor = 8.0F;
  float low_freq_factor = 1.0F;
  float high_freq_factor = 4.0F;
  int64_t original_max_positions = 8192;
};

// theta^(-2i / head_dim) for i < head_dim / 2, in fp32 as transformers computes them. `scaling` multiplies
// long wavelengths by its factor, keeps short ones, and interpolates between (transformers'
// _compute_llama3_parameters).
std::vector<float> RopeFrequencies(int64_t head_dim, double theta,
                                   const std::optional<Llama3RopeScaling>& scaling);

// Cosines and sines of the rotation angles, for positions [0, n). Grow raises n.
//
// Thread safety: none; one thread drives a model.
class RopeTable {
 public:
  explicit RopeTable(std::vector<float> frequencies) : frequencies_(std::move(frequencies)) {}

  // Extends the table to positions [0, positions), unless it has them.
  void Grow(int64_t positions);
  int64_t half_dim() const { return static_cast<int64_t>(frequencies_.size()); }
  // The half_dim() values of `position`. Valid until the next Grow. REQUIRES: an earlier Grow(positions) with
  // position < positions.
  const float* cosines(int64_t position) const { return cosines_.data() + position * half_dim(); }
  const float* sines(int64_t position) const { return sines_.data() + position * half_dim(); }

 private:
  std::vector<float> frequencies_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

// Rotates queries and keys in place. A head may be longer than the rotated part: the first 2 half_dim()
// elements are then rotated as if they were the head, and the others keep their values.
//
// Inputs: any number of contiguous tensors [batch, tokens, heads, head_dim], f32 or bf16. The invocation's
// sequence() gives the positions of the tokens. Outputs: the same tensors, overwritten.
// Saves: nothing. Backward rotates the gradients by the opposite angles, in place.
// Errors: kInvalidArgument (the sequence has another number of tokens), kFailedPrecondition (an input has a
// reader, see Invocation::AddReader; nothing was overwritten).
class Rope : public Module {
 public:
  // Rotates whole heads.
  Rope(std::string name, std::shared_ptr<RopeTable> table)
      : Module(std::move(name)), table_(std::move(table)), head_dim_(2 * table_->half_dim()) {}
  // Rotates the first 2 half_dim() elements of each head. REQUIRES: head_dim is at least as large.
  Rope(std::string name, std::shared_ptr<RopeTable> table, int64_t head_dim)
      : Module(std::move(name)), table_(std::move(table)), head_dim_(head_dim) {}

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  absl::Status Rotate(const Invocation& invocation, const Tensors& tensors, float direction) const;

  std::shared_ptr<RopeTable> table_;
  int64_t head_dim_;
};

}  // namespace weft
