// Trainer of one rank: the sharded model, its optimizer, and the training step.
//
// Thread safety: none; one thread uses a trainer.
// Collective: all ranks call Create and Step.
// Lifetime: bootstrap and corpus must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "src/train/data/batch_splitter.h"
#include "src/train/loop/merge_adapters.h"
#include "src/train/loop/run_optimizer.h"
#include "src/train/loop/step_counters.h"
#include "src/train/loop/training_state.h"
#include "src/train/plan/byte_inputs.h"
#include "src/train/plan/run_plan.h"
#include "src/train/plan/step_summary.h"
#include "weft/comm/comm_engine.h"
#include "weft/comm/wire_compression.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/memory/node_heap.h"
#include "weft/nn/llama.h"
#include "weft/optim/loss_scaler.h"
#include "weft/sharding/fully_shard.h"
#include "weft/train/corpus.h"
#include "weft/train/metrics.h"

namespace weft {

class Trainer {
 public:
  // Shards the model over the plan's mesh and loads it. Errors: kInvalidArgument (a scheme of context
  // parallelism that does not fit its group; options or layouts that differ between ranks),
  // kResourceExhausted, kDeadlineExceeded (names the missing ranks), and those of the loader.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Bootstrap& bootstrap, const Corpus& corpus,
                                                         RunPlan plan, std::unique_ptr<LlamaModel> model,
                                                         const ShardLoader& loader,
                                                         const EngineOptions& options);

  struct StepResult {
    StepMetrics metrics;
    bool skipped = false;  // The loss or the gradient norm is not finite: no rank updated its weights.
    // The loss or the gradient norm is not finite, and --max-skipped-steps counts the step. Updates in
    // backward change weights before that is known; the step then counts, but was not skipped.
    bool counts_as_skip = false;
    StepFlags flags;  // The sum over all ranks.
  };
  // Runs step number `step`, counted from 1: forward and backward of all microbatches, and the update.
  // `before_update` is called on this rank before its weights change. After an error the trainer is unusable.
  absl::StatusOr<StepResult> Step(int64_t step, const StepFlags& flags,
                                  absl::FunctionRef<absl::Status()> before_update);
  // Aborts the steps of all peers, which would otherwise wait for this rank. Their errors name the cause.
  void Fail(const absl::Status& cause) { engine_->Abort(cause); }

  // The state to save or to load between steps. Lifetime: the trainer's.
  TrainingState state();
  // Adds the adapters to the weights, for an export; see MergeAdapters of a ShardedModel. Training cannot go
  // on afterwards: Step fails with kFailedPrecondition. REQUIRES: not called before.
  absl::Status MergeAdapters();

  // This rank's shards of the model. Collective: all ranks, between steps.
  absl::StatusOr<std::vector<ShardView>> CurrentShards() { return sharded_->CurrentShards(); }
  LlamaModel& model() const { return *model_; }
  CommEngine& engine() const { return *engine_; }
  const WireCompressionChoice& wire_compression() const { return wire_compression_; }
  const BatchSplitter& splitter() const { return splitter_; }
  ByteInputs byte_inputs() const;

 private:
  Trainer(Bootstrap& bootstrap, const Corpus& corpus, RunPlan plan, BatchSplitter splitter,
          std::unique_ptr<LlamaModel> model);
  absl::Status Connect(const ShardLoader& loader, const EngineOptions& options);
  // The parts of Connect that can fail on one rank alone; Connect agrees on their status.
  absl::Status Prepare();
  // If ranks share sequences, makes them compute attention together.
  absl::Status SplitSequences();
  CounterSnapshot Counters() const;
  void ResetPeaks();
  bool IsWarmUp(int64_t step) const { return plan_.indexers && plan_.indexers->IsWarmUp(step); }
  // Adds the sums of all microbatches to `own`.
  // `targets`: those of the step that have a loss, over all ranks.
  // `before_update` is called before the last backward if that updates the weights.
  absl::Status ForwardAndBackward(int64_t step, int64_t targets, StepSummary& own,
                                  absl::FunctionRef<absl::Status()> before_update);
  // Sets how far the next microbatch's gradients are reduced after its backward.
  void SetGradientSync(bool last_microbatch);
  // Key of the random numbers of a microbatch. They depend on seed, step, sequence, document and position,
  // not on the division of the sequences over ranks.
  RandomKey RandomKeyOf(int64_t step, SequenceRange sequences,
                        absl::Span<const int64_t> document_lengths) const;
  absl::StatusOr<RankBatch> ReadBatch(SequenceRange sequences);
  // The norms of each ParameterSet, and the factors of its gradients, without the loss scale: before the
  // update, or at the end of updates in backward.
  absl::StatusOr<std::vector<GradientNorm>> ClipGradNorms();
  absl::StatusOr<std::vector<GradientNorm>> FinishUpdatesInBackward();
  std::vector<GradientNorm> Unscaled(std::vector<GradientNorm> norms) const;
  // `norms`: of each ParameterSet.
  std::vector<OptimizerGroupStep> GroupStepsOf(int64_t step, absl::Span<const GradientNorm> norms) const;
  absl::Status BeginUpdatesInBackward(int64_t step);
  // `mean_factor`: 1 / targets of the whole step.
  absl::Status RunMicrobatch(int64_t step, SequenceRange sequences, float mean_factor, StepSummary& own);
  // `norms`: of each ParameterSet. The metrics of losses, norms and tokens; the others stay 0.
  StepMetrics ResultsOf(int64_t step, const StepSummary& all, absl::Span<const GradientNorm> norms) const;
  absl::Status Update(int64_t step, absl::Span<const GradientNorm> norms);
  float loss_scale() const { return loss_scaler_ ? loss_scaler_->scale() : 1.0F; }

  Bootstrap& bootstrap_;
  const Corpus& corpus_;
  const RunPlan plan_;
  BatchSplitter splitter_;
  double flops_per_token_;
  double warm_up_flops_per_token_;
  std::unique_ptr<NodeHeap> heap_;
  std::unique_ptr<CommEngine> engine_;
  WireCompressionChoice wire_compression_;
  std::unique_ptr<LlamaModel> model_;
  std::unique_ptr<ContextParallel> context_;  // Null if sequences are not split.
  std::unique_ptr<ShardedModel> sharded_;
  std::unique_ptr<StepSummaries> summaries_;
  RunOptimizer optimizer_;
  std::optional<LossScaler> loss_scaler_;  // Unset if nothing is in f16.
  bool has_merged_adapters_ = false;
};

}  // namespace weft
