// Trainer of one rank: the sharded model, its optimizer, and the training step.
//
// Thread safety: none; one thread uses a trainer.
// Collective: all ranks call Create and Step.
// Lifetime: bootstrap and corpus must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "src/train/data/batch_splitter.h"
#include "src/train/loop/run_optimizer.h"
#include "src/train/plan/byte_inputs.h"
#include "src/train/plan/run_plan.h"
#include "weft/comm/comm_engine.h"
#include "weft/comm/wire_compression.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/memory/buffer_pool.h"
#include "weft/memory/node_heap.h"
#include "weft/nn/llama.h"
#include "weft/optim/loss_scaler.h"
#include "weft/sharding/fully_shard.h"
#include "weft/train/checkpoint.h"
#include "weft/train/corpus.h"
#include "weft/train/metrics.h"

namespace weft {

// Loader of the weights that Trainer::State has saved, and of those of `inputs` for a model that adapters
// keep frozen, whose weights are not saved.
ShardLoader LoadWeights(const Checkpoint& checkpoint, const RunPlan& plan, const ShardLoader& inputs);

// Monotonic counters at one moment. A step's costs are the differences of two snapshots.
struct CounterSnapshot {
  EngineCounters engine;
  ShardingCounters sharding;
  int64_t allocated_bytes = 0;  // Memory of tensors and node memory, since the start.
};

class Trainer {
 public:
  // Shards the model over the plan's mesh and loads it. Errors: kResourceExhausted, and those of the loader.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Bootstrap& bootstrap, const Corpus& corpus,
                                                         RunPlan plan, std::unique_ptr<LlamaModel> model,
                                                         const ShardLoader& loader,
                                                         const EngineOptions& options);

  // Requests and states that all ranks exchange at each step.
  struct StepFlags {
    bool stop = false;  // Requests that all ranks stop after the step.
    bool save = false;  // Requests a checkpoint after the step.
    // The rank can advance the save that is under way.
    bool can_advance_save = false;
  };
  struct StepResult {
    StepMetrics metrics;
    bool skipped = false;  // The loss or the gradient norm is not finite: no rank updated its weights.
    bool counts = false;   // The step was skipped, and --max-skipped-steps counts it.
    // `stop` and `save`: requested by some rank. `can_advance_save`: by all ranks.
    StepFlags flags;
  };
  // Runs step number `step`, counted from 1: forward and backward of all microbatches, and the update.
  // `before_update` is called on this rank before its weights change. After an error the trainer is unusable.
  absl::StatusOr<StepResult> Step(int64_t step, const StepFlags& flags,
                                  absl::FunctionRef<absl::Status()> before_update);
  // Aborts the steps of all peers, which would otherwise wait for this rank. Their errors name the cause.
  void Fail(const absl::Status& cause) { engine_->Abort(cause); }

  // This rank's part of the training state, to be saved; with adapters that of the adapters alone. With
  // replicas that share the optimizer, all ranks together have each element once; otherwise each replica has
  // all of them. Lifetime of the shards: the trainer's; their values change in Step.
  CheckpointState State(int64_t step);
  // Adds the adapters' products to this rank's shards of the weights. The model with its adapters is no
  // longer of use then. Collective: all ranks.
  absl::Status MergeAdapters();
  // Replaces the optimizer's state and that of a dynamic loss scale. The weights are those of Create's
  // loader.
  // Errors: those of the checkpoint's loader.
  absl::Status LoadOptimizer(const Checkpoint& checkpoint);

  // This rank's shards of the model. Collective: all ranks, between steps.
  absl::StatusOr<std::vector<ShardView>> CurrentShards() { return sharded_->CurrentShards(); }
  LlamaModel& model() const { return *model_; }
  CommEngine& engine() const { return *engine_; }
  const WireCompressionChoice& wire_compression() const { return wire_compression_; }
  const BatchSplitter& splitter() const { return splitter_; }
  ByteInputs byte_inputs() const;

 private:
  // Sums of IndexerPass.
  struct IndexerSums {
    double loss = 0;
    int64_t queries = 0;
    double selected_mass = 0;
    int64_t mass_pairs = 0;

    IndexerSums& operator+=(const IndexerSums& other);
  };
  // The values that ranks gather from each other at each step. With dense attention they leave out
  // `indexers`.
  struct StepSummary {
    double loss = 0;  // This rank's contribution to the mean loss.
    StepFlags flags;
    int8_t padding[sizeof(int64_t) - sizeof(StepFlags)] = {};
    IndexerSums indexers;
  };

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
  // The norms of each ParameterSet, and the factors of its gradients, without the loss scale.
  absl::StatusOr<std::vector<GradientNorm>> ClipGradNorms();
  // `norms`: of each ParameterSet.
  std::vector<OptimizerGroupStep> GroupStepsOf(int64_t step, absl::Span<const GradientNorm> norms) const;
  absl::Status BeginUpdatesInBackward(int64_t step);
  // `mean_factor`: 1 / targets of the whole step.
  absl::Status RunMicrobatch(int64_t step, SequenceRange sequences, float mean_factor, StepSummary& own);
  size_t SummaryBytes() const {
    return plan_.indexers ? sizeof(StepSummary) : offsetof(StepSummary, indexers);
  }
  absl::StatusOr<StepSummary> GatherSummaries(const StepSummary& own);
  // `norms`: of each ParameterSet. The metrics of losses, norms and tokens; the others stay 0.
  StepMetrics ResultsOf(int64_t step, const StepSummary& all, absl::Span<const GradientNorm> norms) const;
  absl::Status Update(int64_t step, absl::Span<const GradientNorm> norms);
  float loss_scale() const { return loss_scaler_ ? loss_scaler_->scale() : 1.0F; }
  // Adapts the loss scale after a step. Returns its metrics; unset without one.
  absl::Status LoadLossScale(const Checkpoint& checkpoint);

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
  std::unique_ptr<BufferPool> summaries_pool_;
  Buffer summaries_;  // SummaryBytes() per rank, in node memory.
  LaneId summaries_lane_;
  RunOptimizer optimizer_;
  std::optional<LossScaler> loss_scaler_;  // Unset if nothing is in f16.
};

}  // namespace weft
