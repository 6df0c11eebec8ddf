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
#include <utility>
#include <variant>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/nn/module.h"

namespace weft {

// Scalings of the frequencies for contexts longer than those of the first training: the rope types of a
// config.json of Hugging Face, computed as by the functions of transformers' modeling_rope_utils that are
// named. `original_max_positions` are the positions of the first training.

// All frequencies are divided by the factor (_compute_linear_scaling_rope_parameters).
struct LinearRopeScaling {
  float factor = 1.0F;
  bool operator==(const LinearRopeScaling&) const = default;
};

// theta grows with the length of the sequences beyond the model's positions ("NTK-aware",
// _compute_dynamic_ntk_parameters).
struct DynamicRopeScaling {
  float factor = 1.0F;
  bool operator==(const DynamicRopeScaling&) const = default;
};

// Wavelengths that fit less than beta_slow times into the original positions are multiplied by the factor,
// those that fit more than beta_fast times are kept, and others lie between (Peng et al., "YaRN", 2023,
// section 3.2; _compute_yarn_parameters).
struct YarnRopeScaling {
  float factor = 1.0F;
  float attention_factor = 1.0F;  // Factor of cosines and sines.
  float beta_fast = 32.0F;
  float beta_slow = 1.0F;
  bool truncate = true;  // Round the bounds of the transition outwards to whole pairs.
  int64_t original_max_positions = 8192;
  bool operator==(const YarnRopeScaling&) const = default;
};

// Each frequency is divided by a factor of its own; sequences longer than the original positions have factors
// of their own (Ding et al., "LongRoPE", 2024; _compute_longrope_parameters).
struct LongRopeScaling {
  std::vector<float> short_factors, long_factors;  // head_dim / 2 each.
  float attention_factor = 1.0F;                   // Factor of cosines and sines.
  int64_t original_max_positions = 8192;
  bool operator==(const LongRopeScaling&) const = default;
};

// Long wavelengths are multiplied by the factor, short ones are kept, and others lie between (Llama 3.1,
// _compute_llama3_parameters).
struct Llama3RopeScaling {
  float factor = 8.0F;
  float low_freq_factor = 1.0F;
  float high_freq_factor = 4.0F;
  int64_t original_max_positions = 8192;
  bool operator==(const Llama3RopeScaling&) const = default;
};

using RopeScaling =
    std::variant<Llama3RopeScaling, LinearRopeScaling, DynamicRopeScaling, YarnRopeScaling, LongRopeScaling>;

// Lengths that the frequencies of some scalings depend on.
struct RopeLengths {
  int64_t max_positions = 0;  // The model's longest sequence.
  int64_t sequence = 0;       // Tokens of the sequences; 0: no more than the original positions.
};

// theta^(-2i / head_dim) for i < head_dim / 2, in fp32 as transformers computes them, and scaled.
// REQUIRES: LongRopeScaling has head_dim / 2 factors; DynamicRopeScaling has a head_dim above 2 and
// max_positions.
std::vector<float> RopeFrequencies(int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling,
                                   const RopeLengths& lengths = {});

// The factor of cosines and sines; 1 for scalings without one.
float RopeAttentionFactor(const std::optional<RopeScaling>& scaling);

// Cosines and sines of the rotation angles, times a factor, for positions [0, n). Grow raises n.
//
// Thread safety: none; one thread drives a model.
class RopeTable {
 public:
  explicit RopeTable(std::vector<float> frequencies, float factor = 1.0F)
      : frequencies_(std::move(frequencies)), factor_(factor) {}

  // Extends the table to positions [0, positions), unless it has them.
  void Grow(int64_t positions);
  int64_t half_dim() const { return static_cast<int64_t>(frequencies_.size()); }
  // The half_dim() values of `position`. Valid until the next Grow. REQUIRES: an earlier Grow(positions) with
  // position < positions.
  const float* cosines(int64_t position) const { return cosines_.data() + position * half_dim(); }
  const float* sines(int64_t position) const { return sines_.data() + position * half_dim(); }

 private:
  std::vector<float> frequencies_;
  float factor_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

// Rotates queries and keys in place. A head may be longer than the rotated part: the first 2 half_dim()
// elements are then rotated as if they were the head, and the others keep their values.
//
// Inputs: any number of contiguous tensors [batch, tokens, heads, head_dim], f32, bf16 or f16. The
// invocation's sequence() gives the positions of the tokens. Outputs: the same tensors, overwritten.
// Saves: nothing. Backward rotates the gradients by the opposite angles, in place; of a gradient that has a
// reader, it rotates a copy.
// Errors: kInvalidArgument (shape or dtype; the sequence has another number of tokens), kFailedPrecondition
// (an input has a reader, see Invocation::AddReader; nothing was overwritten).
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
