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

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/train/data/batch_splitter.h"
#include "src/train/loop/run_plan.h"
#include "weft/comm/comm_engine.h"
#include "weft/comm/wire_compression.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/memory/buffer_pool.h"
#include "weft/memory/node_heap.h"
#include "weft/nn/llama.h"
#include "weft/optim/sharded_adamw.h"
#include "weft/sharding/fully_shard.h"
#include "weft/train/corpus.h"
#include "weft/train/metrics.h"

namespace weft {

// Monotonic counters at one moment. A step's costs are the differences of two snapshots.
struct CounterSnapshot {
  EngineCounters engine;
  ShardingCounters sharding;
  int64_t allocated_bytes = 0;  // By tensors and from the node heap, since the start.
};

class Trainer {
 public:
  // Shards the model over the plan's mesh and loads it. Errors: kResourceExhausted, and those of the loader.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Bootstrap& bootstrap, const Corpus& corpus,
                                                         RunPlan plan, std::unique_ptr<LlamaModel> model,
                                                         const ShardLoader& loader,
                                                         const EngineOptions& options);

  struct StepResult {
    StepMetrics metrics;
    bool skipped = false;  // The loss or the gradient norm is not finite: no rank updated its weights.
    bool stop = false;     // Some rank requested a stop.
  };
  // Runs step number `step`, counted from 1: forward and backward of all microbatches, and the update. With
  // `stop`, this rank requests that all ranks stop after the step. After an error the trainer is unusable.
  absl::StatusOr<StepResult> Step(int64_t step, bool stop);
  // Aborts the steps of all peers, which would otherwise wait for this rank. Their errors name the cause.
  void Fail(const absl::Status& cause) { engine_->Abort(cause); }

  // This rank's shards of the model. Collective: all ranks, between steps.
  absl::StatusOr<std::vector<ShardView>> CurrentShards() { return sharded_->CurrentShards(); }
  LlamaModel& model() const { return *model_; }
  CommEngine& engine() const { return *engine_; }
  const WireCompressionChoice& wire_compression() const { return wire_compression_; }
  const BatchSplitter& splitter() const { return splitter_; }

 private:
  // The values that ranks gather from each other at each step.
  struct StepSummary {
    double loss = 0;   // This rank's contribution to the mean loss.
    int64_t stop = 0;  // 1 if this rank requests a stop.
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
  absl::StatusOr<double> ForwardAndBackward(int64_t step);
  // Sets how far the next microbatch's gradients are reduced after its backward.
  void SetGradientSync(bool last_microbatch);
  absl::StatusOr<double> RunMicrobatch(SequenceRange sequences);
  absl::StatusOr<StepSummary> GatherSummaries(const StepSummary& own);
  absl::Status Update(double lr, float gradient_scale);

  Bootstrap& bootstrap_;
  const Corpus& corpus_;
  const RunPlan plan_;
  BatchSplitter splitter_;
  double flops_per_token_;
  std::unique_ptr<NodeHeap> heap_;
  std::unique_ptr<CommEngine> engine_;
  WireCompressionChoice wire_compression_;
  std::unique_ptr<LlamaModel> model_;
  std::unique_ptr<ContextParallel> context_;  // Null if sequences are not split.
  std::unique_ptr<ShardedModel> sharded_;
  std::unique_ptr<BufferPool> summaries_pool_;
  Buffer summaries_;  // One StepSummary per rank, in node memory.
  LaneId summaries_lane_;
  std::optional<ShardedAdamW> optimizer_;
};

}  // namespace weft
