// Plan of a run: its mesh, batch, context parallelism, sharding and optimizer. Pure: every rank makes the
// same plan from the same numbers.
#pragma once

#include <cstdint>
#include <optional>

#include <absl/status/statusor.h>

#include "src/train/data/evaluation_plan.h"
#include "src/train/plan/context_plan.h"
#include "src/train/plan/inputs.h"
#include "weft/mesh/device_mesh.h"
#include "weft/optim/adamw.h"
#include "weft/optim/loss_scaler.h"
#include "weft/optim/lr_schedule.h"
#include "weft/optim/muon.h"
#include "weft/optim/sgd.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/residency.h"
#include "weft/train/batch_order.h"
#include "weft/train/config.h"

namespace weft {

// Low-rank adapters, which alone are trained.
struct AdapterPlan {
  int64_t elements;  // Of all adapters.
  float scaling;
  double dropout;
};

// How far the gradients of a microbatch are reduced after its backward.
struct MicrobatchSync {
  bool reduce_scatter;  // Over the shard group.
  bool all_reduce;      // Over replicas.
};

struct RunPlan {
  DeviceMesh mesh;
  int replicate_size;
  int shard_size;
  ContextPlan context;
  BatchShape batch;
  BatchOrder order;
  int64_t seq_len;
  std::optional<int64_t> document_separator;
  // The values of the flags, with prefetch_depth set. If wire_compression is unset, the trainer measures it.
  ParallelOptions parallel;
  ShareDomains domains;
  ResidencyChoice residency;
  OptimizerKind optimizer;
  bool updates_in_backward;
  // Options of each rule; Muon uses those of AdamW, too. The trainer sets the learning rates at each step.
  AdamWOptions adamw;
  SgdOptions sgd;
  MuonOptions muon;
  DecayScope decay;
  LrSchedule learning_rate;  // Of --lr.
  double clip_grad_norm;
  std::optional<LossScalerOptions> loss_scaling;  // Unset if nothing is in f16.
  std::optional<EvaluationPlan> evaluation;
  std::optional<IndexerTraining> indexers;             // Unset for dense attention.
  std::optional<AdapterPlan> adapters = std::nullopt;  // Unset: the whole model is trained.
  bool saves_while_training = false;                   // --checkpoint-async

  // The sequences of step number `step`, counted from 1, over all ranks.
  SequenceRange SequencesOf(int64_t step) const { return {(step - 1) * batch.batch_size, batch.batch_size}; }
  std::optional<int64_t> adapter_elements() const {
    return adapters ? std::optional(adapters->elements) : std::nullopt;
  }
  int64_t tokens_per_step() const { return batch.batch_size * seq_len; }
  // Consecutive ranks that together hold one copy of the weights.
  int shard_group_size() const { return shard_size * context.size; }
  // Ranks that share sequences have the same data-parallel rank.
  int data_parallel_rank(int rank) const { return rank / context.size; }
  // By --grad-sync.
  MicrobatchSync SyncOf(bool last_microbatch) const {
    return {last_microbatch || parallel.grad_sync != GradientSync::kLast,
            last_microbatch || parallel.grad_sync == GradientSync::kEach};
  }
  ShardingPolicy Policy(WireCompression wire_compression) const;
};

// Errors: kInvalidArgument (the mesh sizes do not multiply to the number of ranks, the batch size is not a
// multiple of microbatches x data-parallel ranks, a sequence is longer than the model's positions, weights
// cannot be shared as requested, there are no replicas over which to shard the optimizer, the separator is
// outside the vocabulary; names flags and remedy), kDataLoss (too little data).
absl::StatusOr<RunPlan> MakeRunPlan(const TrainConfig& config, const TrainInputs& inputs,
                                    const NodeMap& nodes);

}  // namespace weft
