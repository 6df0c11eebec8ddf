// State of one forward and backward pass over one microbatch: the tensors that modules save for backward (as
// in the `ctx` of a torch.autograd.Function), and settings that hold for all modules of the pass. Several
// invocations of one model can be in flight.
//
// Note [Save scopes]
// Problem: a module with activation checkpointing runs its forward twice, and saves are popped in LIFO order.
//   Saves of the recomputed forward must not mix with saves that the same modules made in other calls of this
//   invocation.
// Rule: the first forward runs in a NoSaveScope, in which nothing is saved. Backward recomputes the forward
//   in a NewSaveScope, which sets the present saves aside until the scope ends.
// Why it suffices: the module's backward runs in the same scope, so that it pops exactly what the recompute
//   saved. Scopes nest as checkpointed modules do.
// Without it, a module that is called both inside and outside a checkpointed module pops the saves of another
// call.
//
// Note [Calls without backward]
// Problem: a module whose backward forgets a child gives wrong gradients without an error.
// Rule: an invocation lists the forward calls that wait for their backward. When the backward of a call ends,
//   no call that was made inside its forward may be left. Exceptions, whose backward need not run: a child
//   whose parameters are all frozen, and a child without parameters that has saved nothing. A hook can
//   require their backward, too.
// Why it suffices: calls nest. A recomputed forward lists its calls in a NewSaveScope of its own.
//
// Thread safety: none; one thread drives an invocation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>
#include <absl/status/status.h>
#include <absl/types/span.h>

#include "weft/core/tensor.h"
#include "weft/core/tensor_view.h"
#include "weft/nn/attention_mask.h"
#include "weft/nn/token_runs.h"

namespace weft {

class KvCache;
class Module;
using Tensors = absl::InlinedVector<Tensor, 2>;

// Key of the random numbers that modules such as Dropout draw in a pass.
struct RandomKey {
  uint64_t seed = 0;
  int64_t step = 0;  // Counted over the whole training, so that a resumed run goes on with other numbers.
  // For each row of the batch the number of its sample among those of the step, over all ranks and
  // microbatches; below 2^32.
  std::vector<int64_t> samples;
  // For a batch of one row that packs several samples, the documents of its sequence. Empty: no pack.
  struct Document {
    int64_t sample;
    int64_t number;  // Among the documents of the sample, from 0.
  };
  std::vector<Document> documents = {};
};
// The key of rows with consecutive samples.
RandomKey MakeRandomKey(uint64_t seed, int64_t step, int64_t first_sample, int64_t rows);

class Invocation {
 public:
  // `gradients`: a backward follows. Without it modules save nothing.
  // `loss_scale`: factor of every target's loss. With 1 / (targets of the whole step, over all ranks and
  //   microbatches), the partial losses add up to the mean.
  explicit Invocation(bool gradients = true, float loss_scale = 1.0F)
      : gradients_(gradients), loss_scale_(loss_scale) {}

  bool gradients() const { return gradients_; }
  // False without a backward, and in a NoSaveScope. Then Save has no effect, and modules need not compute
  // what only backward reads.
  bool is_saving() const { return gradients_ && !suspended_; }
  // True while backward runs the forward of a checkpointed module again.
  bool is_recomputing() const { return recomputes_ > 0; }
  float loss_scale() const { return loss_scale_; }

  // A stack of saves per module: each forward call pushes the tensors that its backward needs, and backward
  // pops them in the reverse order of the calls. REQUIRES of PopSaved: a save of `module` is left.
  void Save(const Module* module, Tensors tensors);
  Tensors PopSaved(const Module* module);
  // Returns the tensors of the next PopSaved of `module`, for checks before it. REQUIRES: a save of `module`
  // is left.
  const Tensors& LastSaved(const Module* module) const;
  // The same for the inputs of a checkpointed module, apart from the module's own saves.
  void SaveInputs(const Module* module, Tensors inputs);
  Tensors PopInputs(const Module* module);
  // The documents and positions of the tokens in every activation's token dim, and how ranks share the
  // sequence. Null: each row of the batch is one document that starts at position 0 and is not split. Set it
  // before the forward, and do not change it until backward is done.
  void SetSequence(std::shared_ptr<const SequenceParts> sequence) { sequence_ = std::move(sequence); }
  const std::shared_ptr<const SequenceParts>& sequence() const { return sequence_; }
  // Hides pairs of queries and keys from every dense attention of the pass, beside the attention's own
  // mask; for documents that differ from row to row, for example. Null: hides none. Set it as SetSequence.
  // Errors of the forward: kInvalidArgument (SetSequence has set several documents).
  void SetPairMask(std::shared_ptr<const PairMask> pair_mask) { pair_mask_ = std::move(pair_mask); }
  const std::shared_ptr<const PairMask>& pair_mask() const { return pair_mask_; }
  // Lets modules draw random numbers. None: a pass without gradients is an evaluation, without random
  // numbers. Set it as SetSequence.
  void SetRandomKey(RandomKey key) { random_key_ = std::move(key); }
  const std::optional<RandomKey>& random_key() const { return random_key_; }
  // Keys and values of the earlier tokens of a sequence, to which every attention of the pass appends those
  // of this pass. See KvCache in weft/nn/attention.h. Null: the pass has the whole sequence.
  // REQUIRES: no backward follows.
  void SetKvCache(std::shared_ptr<KvCache> kv_cache) { kv_cache_ = std::move(kv_cache); }
  const std::shared_ptr<KvCache>& kv_cache() const { return kv_cache_; }

  // Per-invocation state of a hook: one T for each key, created at the first call and destroyed with the
  // invocation.
  template <typename T>
  T& State(const void* key) {
    std::shared_ptr<void>& state = states_[{key, std::type_index(typeid(T))}];
    if (state == nullptr) state = std::make_shared<T>();
    return *static_cast<T*>(state.get());
  }

  // Registers a reader of `tensor` that runs beside the modules or after them, such as a send to another
  // rank. `use` completes the error "<module> would overwrite <use>". Call RemoveReader once for each
  // AddReader, with the same tensor and `use`.
  // Lifetime: `use` must outlive the registration.
  void AddReader(const Tensor& tensor, const std::string* use);
  void RemoveReader(const Tensor& tensor, const std::string* use);
  // Modules that overwrite an input or a gradient call this first, or overwrite what WritableOrCopy returns.
  // `writer` is the module's name. A tensor covers the bytes from its first to its last element.
  // Errors: kFailedPrecondition (a tensor with a reader covers some of the bytes; names `writer` and the
  // reader's `use`).
  absl::Status CheckWritable(const Tensor& tensor, const std::string& writer) const;
  // The tensor, or a copy of it if CheckWritable would fail.
  Tensor WritableOrCopy(const Tensor& tensor) const;

  // Lists a forward call of `module` until EndCall, between Begin and End of which the calls inside of it are
  // made. Without saves nothing is listed. See Note [Calls without backward].
  void BeginCall(Module& module);
  void EndCall(const Module& module);
  // Notes dtypes and shapes of the outputs of the last call of `module`, for CheckGradients.
  void NoteOutputs(const Module& module, const Tensors& outputs);
  // Requires the backward of the running call of `module`, even if it is one of the exceptions, as long as
  // `reason` returns a text: "the backward of <parent> left out the backward of <module>, <text>". Without
  // saves nothing is required.
  using BackwardReason = std::function<std::string()>;
  void RequireBackward(const Module& module, BackwardReason reason);
  // OK if the last call of `module` waits for its backward, and the gradients have the dtypes and shapes of
  // its outputs. A gradient may be undefined, and those of the last outputs may be missing.
  // Errors: kFailedPrecondition (no call waits), kInvalidArgument. Messages begin with the module's name.
  absl::Status CheckGradients(const Module& module, const Tensors& output_gradients) const;
  // Removes the last call of `module` from the list; nothing happens if there is none.
  // Errors: kFailedPrecondition (a call inside of it waits for its backward; names both modules).
  absl::Status FinishCall(const Module& module);
  // The same for all calls of the present scope, which `module` has made.
  absl::Status CheckCallsFinished(const Module& module) const;

  // True when every save has been popped.
  bool empty() const { return saves_.modules.empty() && saves_.inputs.empty(); }

  class NoSaveScope;
  class NewSaveScope;

 private:
  struct Output {
    DType dtype;
    Shape shape;
  };
  struct Call {
    Module* module;
    int64_t begin;
    int64_t end;  // Number of the first call after it; 0 while its forward runs.
    absl::InlinedVector<Output, 1> outputs;
    std::vector<BackwardReason> backward_reasons;
  };
  using SavesByModule = absl::flat_hash_map<const Module*, std::vector<Tensors>>;
  struct Saves {
    SavesByModule modules;
    SavesByModule inputs;
    std::vector<Call> calls;  // Waiting for their backward, by ascending `begin`.
  };
  // The last call of `module` whose forward runs; null if there is none or nothing is listed.
  Call* RunningCall(const Module& module);
  absl::Status LeftOut(const Module& module, absl::Span<const Call> calls) const;
  // Why the backward of the call is required beyond the rule; empty: it is not.
  static std::string RequiredReason(const Call& call);
  struct Reader {
    TensorView view;
    const std::string* use;
  };
  // The last reader of some of the tensor's bytes; null if there is none.
  const Reader* ReaderOf(const Tensor& tensor) const;

  bool gradients_;
  float loss_scale_;
  bool suspended_ = false;  // A NoSaveScope is alive.
  int recomputes_ = 0;      // NewSaveScopes that are alive.
  Saves saves_;
  int64_t next_call_ = 1;
  std::shared_ptr<const SequenceParts> sequence_;
  std::shared_ptr<const PairMask> pair_mask_;
  std::shared_ptr<KvCache> kv_cache_;
  std::optional<RandomKey> random_key_;
  std::vector<Reader> readers_;  // In the order of AddReader.
  absl::flat_hash_map<std::pair<const void*, std::type_index>, std::shared_ptr<void>> states_;
};

// Scope in which nothing is saved. See Note [Save scopes].
class Invocation::NoSaveScope {
 public:
  explicit NoSaveScope(Invocation& invocation)
      : invocation_(invocation), outer_(std::exchange(invocation.suspended_, true)) {}
  ~NoSaveScope() { invocation_.suspended_ = outer_; }
  NoSaveScope(const NoSaveScope&) = delete;
  NoSaveScope& operator=(const NoSaveScope&) = delete;

 private:
  Invocation& invocation_;
  bool outer_;
};

// Scope with saves of its own. Its end drops the saves that were not popped, and restores those from before.
// See Note [Save scopes].
class Invocation::NewSaveScope {
 public:
  explicit NewSaveScope(Invocation& invocation)
      : invocation_(invocation), outer_(std::exchange(invocation.saves_, {})) {
    ++invocation_.recomputes_;
  }
  ~NewSaveScope() {
    --invocation_.recomputes_;
    invocation_.saves_ = std::move(outer_);
  }
  NewSaveScope(const NewSaveScope&) = delete;
  NewSaveScope& operator=(const NewSaveScope&) = delete;

 private:
  Invocation& invocation_;
  Saves outer_;
};

}  // namespace weft
