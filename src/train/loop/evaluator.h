// Evaluator of a model: its mean loss over all targets of separate data, without gradients.
//
// Thread safety: none; the training thread uses it.
// Collective: all ranks call Create, ComputeLoss, ComputeLossUnless and IsAnyStopped, between steps.
// Lifetime: model, engine and corpus must outlive it.
#pragma once

#include <memory>
#include <optional>

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include "src/train/data/batch_splitter.h"
#include "src/train/data/evaluation_plan.h"
#include "weft/comm/comm_engine.h"
#include "weft/memory/buffer_pool.h"
#include "weft/nn/llama.h"
#include "weft/train/corpus.h"

namespace weft {

class Evaluator {
 public:
  // Errors: kResourceExhausted; kDataLoss (no token has a loss), and those of Corpus::ReadLossMask.
  static absl::StatusOr<std::unique_ptr<Evaluator>> Create(CommEngine& engine, LlamaModel& model,
                                                           const Corpus& corpus, const EvaluationPlan& plan,
                                                           const BatchSplitter& splitter);

  // Returns the loss in nats, the same on all ranks. Note [The same loss on every mesh] says on which meshes
  // its bits are the same.
  absl::StatusOr<double> ComputeLoss();
  // The same. Before each pass the ranks agree whether `is_stopped` has returned true on some rank: then the
  // rest is left out, and the result is nothing.
  absl::StatusOr<std::optional<double>> ComputeLossUnless(absl::FunctionRef<bool()> is_stopped);
  // True on all ranks if `own` is true on some rank.
  absl::StatusOr<bool> IsAnyStopped(bool own);

 private:
  Evaluator(CommEngine& engine, LlamaModel& model, const Corpus& corpus, const EvaluationPlan& plan,
            const BatchSplitter& splitter);
  // The summed loss of this rank's tokens of `windows`; 0 if there are none.
  absl::StatusOr<double> RunPass(SequenceRange windows);
  absl::Status RunRound(int64_t round);
  // The mean loss, once all rounds have run.
  absl::StatusOr<double> GatherLoss();
  int rank() const { return engine_.bootstrap().rank(); }
  int data_parallel_rank() const { return rank() / plan_.context; }
  double* losses() const { return reinterpret_cast<double*>(losses_.data()); }
  double* own_losses() const {
    return losses() + plan_.FirstLoss(data_parallel_rank(), rank() % plan_.context);
  }

  CommEngine& engine_;
  LlamaModel& model_;
  const Corpus& corpus_;
  EvaluationPlan plan_;
  int64_t targets_ = 0;  // Those that have a loss.
  BatchSplitter splitter_;
  BufferPool pool_;
  // Losses of all parts of all passes, in the order of EvaluationPlan::FirstLoss. In node memory.
  Buffer losses_;
  Buffer stopped_;  // An int64_t of IsAnyStopped.
  LaneId lane_;
};

}  // namespace weft
