// One rank's share of the training: the sharded model, its optimizer, and the step that they do together.
//
// Thread safety: none; one thread drives a trainer.
// Collective: Create and Step, by all ranks.
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
#include "weft/sharding/comm_context.h"
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
  // Shards the model over the plan's mesh and loads it. Errors: kResourceExhausted, and what the loader says.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Bootstrap& bootstrap, const Corpus& corpus,
                                                         RunPlan plan, std::unique_ptr<LlamaModel> model,
                                                         const ShardLoader& loader,
                                                         const EngineOptions& options);

  struct StepResult {
    StepMetrics metrics;
    bool stop = false;  // A rank asked for it.
  };
  // Forward and backward of all microbatches, and the update, number `step` from 1. `stop`: this rank asks
  // all to stop afterwards. After an error the trainer is of no more use.
  absl::StatusOr<StepResult> Step(int64_t step, bool stop);
  // Makes the steps of all peers fail with this cause, rather than wait for a rank that comes no more.
  void Fail(const absl::Status& cause) { engine_->Abort(cause); }

  // What this rank holds of the model. Collective: by all ranks, between steps.
  absl::StatusOr<std::vector<ShardView>> CurrentShards() { return sharded_->CurrentShards(); }
  LlamaModel& model() const { return *model_; }
  CommEngine& engine() const { return *engine_; }
  const WireCompressionChoice& wire_compression() const { return wire_compression_; }
  const BatchSplitter& splitter() const { return splitter_; }

 private:
  // What ranks tell each other at each step.
  struct StepNote {
    double loss = 0;  // This rank's part of the mean.
    int64_t stop = 0;
  };

  Trainer(Bootstrap& bootstrap, const Corpus& corpus, RunPlan plan, BatchSplitter splitter,
          std::unique_ptr<LlamaModel> model);
  absl::Status Connect(const ShardLoader& loader, const EngineOptions& options);
  // What may fail on one rank alone, between what all do together.
  absl::Status Prepare();
  // Where ranks share sequences: makes them compute attention together.
  absl::Status SplitSequences();
  CounterSnapshot Counters() const;
  void ResetPeaks();
  absl::StatusOr<double> ForwardAndBackward(int64_t step);
  // Says how far gradients go after the backward of the next microbatch.
  void SyncGradientsOf(bool last_microbatch);
  absl::StatusOr<double> RunMicrobatch(SequenceRange sequences);
  absl::StatusOr<StepNote> CombineNotes(const StepNote& own);
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
  std::unique_ptr<ContextParallel> context_;  // Null where sequences are not split.
  std::unique_ptr<ShardedModel> sharded_;
  std::unique_ptr<BufferPool> notes_pool_;
  Buffer notes_;  // One StepNote a rank, in node memory.
  LaneId notes_lane_;
  std::optional<ShardedAdamW> optimizer_;
};

}  // namespace weft
