#include "src/train/plan/run_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "src/train/config/flag_error.h"
#include "weft/core/status.h"

namespace weft {
namespace {

struct MeshShape {
  int64_t replicate;
  int64_t shard;
  int64_t context;
};

absl::StatusOr<MeshShape> FitMesh(const ParallelOptions& parallel, int64_t ranks) {
  MeshShape shape{parallel.dp_replicate, parallel.dp_shard, parallel.context.size};
  // Divides the ranks by the sizes, because the product of the sizes could overflow.
  int64_t rest = ranks;
  bool divides = true;
  int64_t* open = nullptr;  // The axis of size -1.
  for (int64_t* size : {&shape.replicate, &shape.shard, &shape.context}) {
    if (*size == -1) {
      open = size;
      continue;
    }
    divides = divides && rest % *size == 0;
    rest /= *size;
  }
  if (divides && open != nullptr) *open = rest;
  if (divides && (open != nullptr || rest == 1)) return shape;
  return absl::InvalidArgumentError(
      absl::StrCat("--dp-replicate ", shape.replicate, ", --dp-shard ", shape.shard, " and --cp ",
                   shape.context, " do not multiply to the ", ranks, ranks == 1 ? " rank" : " ranks",
                   " of this run: change one of them (-1 takes all remaining ranks) or the number of ranks: "
                   "mpirun's -n, or --ranks of weft plan"));
}

absl::StatusOr<DeviceMesh> MakeMesh(int replicate, int shard, int context) {
  std::vector<MeshAxis> axes = {{"replicate", replicate}, {"shard", shard}};
  if (context > 1) axes.push_back({"context", context});
  return DeviceMesh::Create(std::move(axes), replicate * shard * context);
}

ShardingPolicy MakePolicy(const ParallelOptions& parallel, WireCompression wire_compression) {
  ShardingPolicy policy;
  policy.layout = FlatKindFor(parallel.zero_copy);
  policy.node_shared = parallel.node_shared;
  policy.reshard_after_forward = parallel.reshard_after_forward;
  policy.shard_optimizer_over_replicas = parallel.shard_optimizer_over_replicas;
  if (parallel.prefetch_depth) policy.prefetch_depth = static_cast<int>(*parallel.prefetch_depth);
  policy.param_dtype = parallel.param_dtype;
  policy.reduce_dtype = parallel.reduce_dtype;
  policy.wire_compression = wire_compression;
  return policy;
}

absl::StatusOr<std::optional<EvaluationPlan>> PlanEvaluation(const TrainConfig& config,
                                                             const TrainInputs& inputs, int data_parallel,
                                                             int context) {
  if (!inputs.eval_corpus) {
    return std::nullopt;
  }
  const int64_t seq_len = config.data.seq_len;
  absl::StatusOr<int64_t> windows = BatchOrder::CountWindows(inputs.eval_corpus->tokens(), seq_len);
  if (!windows.ok()) {
    return Annotate(windows.status(), "--eval-data");
  }
  return EvaluationPlan{std::min(*windows, config.eval.sequences.value_or(*windows)), seq_len, data_parallel,
                        context};
}

absl::Status CheckSequences(const DataOptions& data, const LlamaConfig& model) {
  if (data.seq_len > model.LongestSequence()) {
    return BadFlag("seq-len", data.seq_len,
                   absl::StrCat("is longer than the model's ", model.LongestSequence(),
                                " positions: use a shorter one"));
  }
  if (data.document_separator.has_value() && *data.document_separator >= model.vocab_size) {
    return BadFlag("document-separator", *data.document_separator,
                   absl::StrCat("the vocabulary ends at ", model.vocab_size - 1, ": use one of its tokens"));
  }
  return absl::OkStatus();
}

// A rank holds the activations of a microbatch, so a larger one fits no machine.
constexpr int64_t kMaxMicrobatchTokens = int64_t{1} << 28;

absl::Status CheckMicrobatch(const BatchShape& batch, int64_t seq_len) {
  const int64_t sequences = batch.sequences_per_rank();
  if (sequences <= kMaxMicrobatchTokens / seq_len) return absl::OkStatus();
  return BadFlag("batch-size", batch.batch_size,
                 absl::StrCat("gives each rank ", sequences, " sequences of --seq-len ", seq_len,
                              " at once, but at most ", kMaxMicrobatchTokens,
                              " tokens are possible: use a smaller one, or more --grad-accum"));
}

}  // namespace

ShardingPolicy RunPlan::Policy(WireCompression wire_compression) const {
  ShardingPolicy policy = MakePolicy(parallel, wire_compression);
  // The backward of a Llama model writes the gradients of all parameters that are trained. So ranks need not
  // agree on the used ones, and no optimizer decays an unused one.
  policy.unused_gradients = UnusedGradients::kZero;
  // Microbatches then add up in the gradients that backward writes. Their sum is rounded once.
  if (parallel.grad_sync == GradientSync::kLast && batch.microbatches > 1)
    policy.gradient_dtype = DType::kF32;
  return policy;
}

absl::StatusOr<RunPlan> MakeRunPlan(const TrainConfig& config, const TrainInputs& inputs,
                                    const NodeMap& nodes) {
  WEFT_ASSIGN_OR_RETURN(const MeshShape shape, FitMesh(config.parallel, nodes.size()));
  if (config.parallel.shard_optimizer_over_replicas && shape.replicate == 1) {
    return BadFlag("shard-optimizer-over-replicas", "true",
                   "needs replicas: use --dp-replicate of at least 2, or leave it out");
  }
  if (config.parallel.check_replicas > 0 && shape.replicate == 1) {
    return BadFlag("check-replicas", config.parallel.check_replicas,
                   "needs replicas: use --dp-replicate of at least 2, or leave it out");
  }
  const DataOptions& data = config.data;
  WEFT_RETURN_IF_ERROR(CheckSequences(data, inputs.model));
  const auto replicate = static_cast<int>(shape.replicate);
  const auto shard = static_cast<int>(shape.shard);
  const auto context = static_cast<int>(shape.context);
  const int data_parallel = replicate * shard;
  WEFT_ASSIGN_OR_RETURN(const BatchShape batch,
                        BatchShape::Make(data.batch_size.value_or(data.grad_accum * data_parallel),
                                         data.grad_accum, data_parallel));
  WEFT_RETURN_IF_ERROR(CheckMicrobatch(batch, data.seq_len));
  WEFT_ASSIGN_OR_RETURN(
      ContextPlan context_plan,
      // The first layer has no window unless all layers have it. Its attention takes the most work.
      PlanContext(config.parallel.context,
                  ShapeOfAttention(inputs.model, batch.sequences_per_rank(), config.parallel.param_dtype),
                  inputs.model.MaskOf(0), data.seq_len));
  WEFT_ASSIGN_OR_RETURN(const int64_t windows,
                        BatchOrder::CountWindows(inputs.corpus.tokens(), data.seq_len));
  WEFT_ASSIGN_OR_RETURN(const std::optional<EvaluationPlan> evaluation,
                        PlanEvaluation(config, inputs, data_parallel, context));
  WEFT_ASSIGN_OR_RETURN(DeviceMesh mesh, MakeMesh(replicate, shard, context));
  // Neither choice depends on wire compression.
  const ShardingPolicy policy =
      ResolvePrefetch(MakePolicy(config.parallel, WireCompression::kNone), nodes, shard * context);
  absl::StatusOr<ShareDomains> domains = ChooseShareDomains(nodes, config.parallel.share_domain);
  if (!domains.ok()) return Annotate(domains.status(), "--share-domain");
  absl::StatusOr<ResidencyChoice> residency = ChooseResidency(policy, *domains, shard * context);
  if (!residency.ok()) return Annotate(residency.status(), "--node-shared");
  ParallelOptions parallel = config.parallel;
  parallel.prefetch_depth = policy.prefetch_depth;
  const OptimizerOptions& o = config.optimizer;
  return RunPlan{.mesh = std::move(mesh),
                 .replicate_size = replicate,
                 .shard_size = shard,
                 .context = std::move(context_plan),
                 .batch = batch,
                 .order = BatchOrder{windows, data.shuffle, config.seed},
                 .seq_len = data.seq_len,
                 .document_separator = data.document_separator,
                 .parallel = parallel,
                 .domains = *std::move(domains),
                 .residency = *std::move(residency),
                 .optimizer = o.kind,
                 .updates_in_backward = o.in_backward,
                 .adamw = o.adamw(),
                 .sgd = o.sgd(),
                 .muon = o.muon(),
                 .decay = o.decay,
                 .learning_rate = LrSchedule{o.lr, o.lr_schedule, o.warmup_steps, o.steps, o.min_lr_ratio},
                 .clip_grad_norm = o.clip_grad_norm,
                 .loss_scaling = config.loss_scaling(),
                 .evaluation = evaluation,
                 .indexers = config.attention.indexer_training(),
                 .adapters = inputs.lora
                                 ? std::optional(AdapterPlan{inputs.adapter_elements, inputs.lora->scaling(),
                                                             inputs.lora->dropout})
                                 : std::nullopt,
                 .saves_while_training = config.checkpoint.async && !config.checkpoint.folder.empty()};
}

}  // namespace weft
