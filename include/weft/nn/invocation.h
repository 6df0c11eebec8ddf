// One microbatch's pass through a model: what its modules saved for backward, and facts that hold for all of
// them. Several invocations of one model can be in flight.
//
// Note [Frames of saves]: a module with activation checkpointing runs its forward under Suspend, in which
// nothing is saved, and recomputes it in backward under a Frame, which sets aside what the invocation holds:
// what the recompute saves meets only the backward that follows it, however often the modules below are
// called elsewhere. Frames nest, as checkpointed modules do.
//
// Thread safety: none; one thread drives an invocation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>
#include <absl/status/status.h>

#include "weft/core/tensor.h"
#include "weft/nn/token_runs.h"

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
  // Whether Save keeps anything: not without a backward, nor where backward will recompute. Modules need not
  // make then what only backward reads.
  bool saves() const { return gradients_ && !suspended_; }
  float loss_scale() const { return loss_scale_; }

  // What `module` needs in backward. A module that is called several times saves once a call; backward takes
  // them back in reverse order of the calls.
  void Save(const Module* module, Tensors tensors);
  Tensors TakeSaved(const Module* module);
  // The inputs of a checkpointed module, beside what it saves itself.
  void SaveInputs(const Module* module, Tensors inputs);
  Tensors TakeInputs(const Module* module);
  // How the token dim of all activations lies in its sequence. Null: every row of the batch is one document
  // from position 0, and not split. Set before the pass, and the same for backward.
  void SetSequence(std::shared_ptr<const SequenceParts> sequence) { sequence_ = std::move(sequence); }
  const std::shared_ptr<const SequenceParts>& sequence() const { return sequence_; }

  // An object of this invocation, made at the first use of the key with this type, gone with the invocation:
  // for hooks that keep what is under way.
  template <typename T>
  T& State(const void* key) {
    std::shared_ptr<void>& state = states_[{key, std::type_index(typeid(T))}];
    if (state == nullptr) state = std::make_shared<T>();
    return *static_cast<T*>(state.get());
  }

  // Somebody reads a tensor while modules go on, such as one who sends it elsewhere: `use`, which outlives
  // the loan, is told to a module that would overwrite it. Each Lend has its TakeBack.
  void Lend(const Tensor& tensor, const std::string* use);
  void TakeBack(const Tensor& tensor);
  // Modules that overwrite a tensor they were given ask first. kFailedPrecondition where it is lent: names
  // `writer` and the use.
  absl::Status CheckWritable(const Tensor& tensor, const std::string& writer) const;

  // True when every save has been taken back.
  bool empty() const { return saves_.modules.empty() && saves_.inputs.empty(); }

  class Suspend;
  class Frame;

 private:
  using SavesByModule = absl::flat_hash_map<const Module*, std::vector<Tensors>>;
  struct Saves {
    SavesByModule modules;
    SavesByModule inputs;
  };
  struct Loans {
    const std::string* use = nullptr;  // The last one's.
    int count = 0;
  };

  bool gradients_;
  float loss_scale_;
  bool suspended_ = false;
  Saves saves_;
  std::shared_ptr<const SequenceParts> sequence_;
  absl::flat_hash_map<const void*, Loans> lent_;  // By the first element.
  absl::flat_hash_map<std::pair<const void*, std::type_index>, std::shared_ptr<void>> states_;
};

// While it lives, nothing is saved. See Note [Frames of saves].
class Invocation::Suspend {
 public:
  explicit Suspend(Invocation& invocation)
      : invocation_(invocation), outer_(std::exchange(invocation.suspended_, true)) {}
  ~Suspend() { invocation_.suspended_ = outer_; }
  Suspend(const Suspend&) = delete;
  Suspend& operator=(const Suspend&) = delete;

 private:
  Invocation& invocation_;
  bool outer_;
};

// While it lives, saves are kept apart from those before; what is left of them goes with it.
class Invocation::Frame {
 public:
  explicit Frame(Invocation& invocation)
      : invocation_(invocation), outer_(std::exchange(invocation.saves_, {})) {}
  ~Frame() { invocation_.saves_ = std::move(outer_); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

 private:
  Invocation& invocation_;
  Saves outer_;
};

}  // namespace weft
