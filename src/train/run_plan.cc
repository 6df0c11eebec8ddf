#include "src/train/run_plan.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

struct MeshShape {
  int64_t replicate;
  int64_t shard;
};

absl::StatusOr<MeshShape> FitMesh(const ParallelOptions& parallel, int64_t ranks) {
  MeshShape shape{parallel.dp_replicate, parallel.dp_shard};
  const int64_t given = shape.replicate == -1 ? shape.shard : shape.replicate;
  if ((shape.replicate == -1 || shape.shard == -1) && ranks % given == 0) {
    int64_t& rest = shape.replicate == -1 ? shape.replicate : shape.shard;
    rest = ranks / given;
    return shape;
  }
  if (shape.replicate > 0 && shape.shard > 0 && shape.replicate * shape.shard == ranks) {
    return shape;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--dp-replicate ", shape.replicate, " and --dp-shard ", shape.shard,
                   " do not multiply to the ", ranks, ranks == 1 ? " rank" : " ranks",
                   " of this run: change one of them (-1 takes the rest) or mpirun's -n"));
}

ShardingPolicy MakePolicy(const ParallelOptions& parallel) {
  ShardingPolicy policy;
  policy.zero_copy = parallel.zero_copy;
  policy.reshard_after_forward = parallel.reshard_after_forward;
  policy.prefetch_depth = static_cast<int>(parallel.prefetch_depth);
  policy.param_dtype = parallel.param_dtype;
  policy.reduce_dtype = parallel.reduce_dtype;
  return policy;
}

absl::StatusOr<std::optional<EvaluationPlan>> PlanEvaluation(const TrainConfig& config,
                                                             const TrainInputs& inputs, int ranks) {
  if (!inputs.eval_corpus) {
    return std::nullopt;
  }
  const int64_t seq_len = config.data.seq_len;
  absl::StatusOr<int64_t> windows = BatchOrder::CountWindows(inputs.eval_corpus->tokens(), seq_len);
  if (!windows.ok()) {
    return Annotate(windows.status(), "--eval-data");
  }
  return EvaluationPlan{std::min(*windows, config.eval.sequences.value_or(*windows)), seq_len, ranks};
}

}  // namespace

absl::StatusOr<RunPlan> MakeRunPlan(const TrainConfig& config, const TrainInputs& inputs, int ranks) {
  WEFT_ASSIGN_OR_RETURN(const MeshShape shape, FitMesh(config.parallel, ranks));
  const DataOptions& data = config.data;
  if (data.seq_len > inputs.model.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("--seq-len ", data.seq_len, " is longer than the model's ",
                                                   inputs.model.max_positions,
                                                   " positions: give at most that"));
  }
  WEFT_ASSIGN_OR_RETURN(
      const BatchShape batch,
      BatchShape::Make(data.batch_size.value_or(data.grad_accum * ranks), data.grad_accum, ranks));
  WEFT_ASSIGN_OR_RETURN(const int64_t windows,
                        BatchOrder::CountWindows(inputs.corpus.tokens(), data.seq_len));
  WEFT_ASSIGN_OR_RETURN(const std::optional<EvaluationPlan> evaluation,
                        PlanEvaluation(config, inputs, ranks));
  const auto replicate = static_cast<int>(shape.replicate);
  const auto shard = static_cast<int>(shape.shard);
  WEFT_ASSIGN_OR_RETURN(DeviceMesh mesh,
                        DeviceMesh::Create({{"replicate", replicate}, {"shard", shard}}, ranks));
  const OptimizerOptions& o = config.optimizer;
  return RunPlan{std::move(mesh),
                 replicate,
                 shard,
                 batch,
                 BatchOrder{windows, data.shuffle, config.seed},
                 data.seq_len,
                 MakePolicy(config.parallel),
                 config.parallel.grad_sync,
                 config.parallel.activation_checkpoint,
                 AdamWOptions{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay},
                 o.decay,
                 LrSchedule{o.lr, o.lr_schedule, o.warmup_steps, o.steps, o.min_lr_ratio},
                 o.clip_grad_norm,
                 evaluation};
}

}  // namespace weft
