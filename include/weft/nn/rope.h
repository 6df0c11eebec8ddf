// Rotary position embedding (Su et al., "RoFormer", 2021) in the rotate-half layout of Hugging Face
// checkpoints: element i of a head is paired with element i + head_dim / 2, and the pair is turned by
// position * frequency(i).
//
// RopeFrequencies and RopeTable are shared by the layers of a model; Rope is the module.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/nn/llama_config.h"
#include "weft/nn/module.h"

namespace weft {

// theta^(-2i / head_dim) for i < head_dim / 2, in fp32 as transformers computes them; with `scaling`, long
// wavelengths are stretched by its factor, short ones kept, and those between blended.
std::vector<float> RopeFrequencies(int64_t head_dim, double theta,
                                   const std::optional<Llama3RopeScaling>& scaling);

// Cosines and sines for positions from 0. Grows to the last position that it is asked for.
//
// Thread safety: none; one thread drives a model.
class RopeTable {
 public:
  explicit RopeTable(std::vector<float> frequencies) : frequencies_(std::move(frequencies)) {}

  // Makes positions [0, positions) available.
  void Grow(int64_t positions);
  int64_t half_dim() const { return static_cast<int64_t>(frequencies_.size()); }
  // Rows of half_dim() values.
  const float* cosines(int64_t position) const { return cosines_.data() + position * half_dim(); }
  const float* sines(int64_t position) const { return sines_.data() + position * half_dim(); }

 private:
  std::vector<float> frequencies_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

// Inputs: any number of tensors [batch, seq, heads, head_dim] (queries, keys), whose tokens' positions are
// those of the invocation's sequence(). Outputs: the same, rotated in place. Backward turns the gradients
// back, in place too. Errors: kInvalidArgument (the sequence has another number of tokens).
class Rope : public Module {
 public:
  Rope(std::string name, std::shared_ptr<RopeTable> table)
      : Module(std::move(name)), table_(std::move(table)) {}

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  absl::Status Rotate(const Invocation& invocation, const Tensors& tensors, float direction) const;

  std::shared_ptr<RopeTable> table_;
};

}  // namespace weft
