#include "src/train/output/resolved_config.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include "src/train/files/json.h"
#include "weft/core/size_text.h"
#include "weft/core/status.h"
#include "weft/core/tensor.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/matmul.h"

namespace weft {
namespace {

// Names of layers that are printed.
constexpr size_t kMostTargets = 8;

std::string OnOff(bool on) { return on ? "on" : "off"; }

std::string Millions(int64_t count) { return absl::StrFormat("%.1f M", static_cast<double>(count) / 1e6); }

ResolvedItem ModelItem(const TrainConfig& config, const LlamaConfig& model) {
  const std::string sizes =
      absl::StrCat(Count(model.layers, "layer"), ", dim ", model.dim, ", ", Count(model.heads, "head"), ", ",
                   Count(model.kv_heads, "kv head"), ", ffn ", model.ffn_dim, ", vocabulary ",
                   model.vocab_size, ", ", Millions(model.ParameterCount()), " parameters");
  if (!config.model.hf_model.empty()) {
    return {"model", sizes,
            absl::StrCat("--hf-model ", config.model.hf_model,
                         config.model.hf_weights() ? "" : ": new weights by --seed")};
  }
  if (config.model.layers) {
    return {"model", sizes, "sizes given"};
  }
  return {"model", sizes,
          config.model.preset.empty() ? "tiny: no model given" : "--model " + config.model.preset};
}

ResolvedItem MeshItem(const RunPlan& plan) {
  const int shards = plan.shard_group_size();
  const std::string kind = plan.replicate_size * shards == 1 ? "one rank"
                           : plan.replicate_size == 1        ? "FSDP: weights sharded over all ranks"
                           : shards == 1                     ? "DDP: whole weights on every rank"
                                                             : "HSDP: weights sharded in each replica";
  return {"mesh", plan.mesh.ToString(), kind};
}

ResolvedItem BatchItem(const TrainConfig& config, const RunPlan& plan) {
  return {
      "batch",
      absl::StrCat(Count(plan.batch.batch_size, "sequence"), " of ", Count(plan.seq_len, "token"),
                   " per step, ", plan.batch.sequences_per_rank(), " per data-parallel rank and microbatch"),
      config.data.batch_size ? "--batch-size" : "one for each data-parallel rank and microbatch"};
}

ResolvedItem DataItem(const TrainConfig& config, const Corpus& corpus, const RunPlan& plan) {
  return {
      "data",
      absl::StrCat(
          Count(corpus.tokens(), "token"), " in ", Count(corpus.sources().size(), "file"), ", ",
          Count(plan.order.windows, "sequence"), " per epoch, ", plan.order.shuffle ? "shuffled" : "in order",
          plan.document_separator ? absl::StrCat(", documents end at token ", *plan.document_separator) : "",
          corpus.has_loss_mask() ? ", loss by mask" : ""),
      !config.data.paths.empty()    ? ""
      : config.optimizer.steps == 0 ? "no --data: --eval-data, as there are no steps"
                                    : "no --data: built-in text"};
}

std::string IndexerSource(const TrainConfig& config, const TrainInputs& inputs) {
  if (inputs.indexer_weights) return "indexers of --hf-model";
  return !config.model.hf_weights() ? "new indexers" : "new indexers by --seed: --hf-model has none";
}

// Empty for dense attention.
std::vector<ResolvedItem> AttentionItems(const TrainConfig& config, const TrainInputs& inputs,
                                         const RunPlan& plan) {
  const auto& sparse = inputs.model.sparse_attention;
  if (!sparse) {
    return {};
  }
  return {{"attention",
           absl::StrCat("sparse, ", sparse->top_k, " keys a query, selected by ",
                        Count(sparse->index_heads, "index head"), " of ", sparse->index_dim, ", ",
                        Count(plan.indexers->warmup_steps, "warm-up step"),
                        " of the indexers alone, loss coefficient ", plan.indexers->loss_coef),
           IndexerSource(config, inputs)}};
}

// Empty without adapters.
std::vector<ResolvedItem> LoraItems(const TrainConfig& config, const TrainInputs& inputs) {
  if (!inputs.lora) {
    return {};
  }
  const LoraOptions& lora = *inputs.lora;
  // PEFT names each layer of a model if all have adapters.
  const std::string targets = lora.targets.size() <= kMostTargets
                                  ? absl::StrJoin(lora.targets, ", ")
                                  : absl::StrCat(lora.targets.size(), " layers");
  return {{"lora",
           absl::StrCat("adapters of rank ", lora.rank, " scaled by ", lora.scaling(), " on ", targets,
                        lora.dropout > 0 ? absl::StrCat(" with dropout ", lora.dropout) : "", ", ",
                        Millions(inputs.adapter_elements), " parameters; the model is frozen"),
           config.lora.adapter.empty() ? "new adapters by --seed" : "--lora-adapter " + config.lora.adapter}};
}

// Empty if sequences are not split.
std::vector<ResolvedItem> ContextItems(const RunPlan& plan) {
  if (plan.context.size == 1) {
    return {};
  }
  return {{"sequences",
           absl::StrCat("split over ", plan.context.size, " ranks, ",
                        plan.context.scheme.Describe(plan.context.size)),
           plan.context.reason}};
}

// Empty without evaluation.
std::vector<ResolvedItem> EvaluationItems(const TrainConfig& config, const RunPlan& plan) {
  if (!plan.evaluation) {
    return {};
  }
  const std::string interval =
      config.eval.interval > 0 ? absl::StrCat(", every ", Count(config.eval.interval, "step"), " and") : ",";
  return {{"evaluation",
           absl::StrCat(Count(plan.evaluation->windows, "sequence"), " in order", interval,
                        " after the last step"),
           config.eval.sequences ? "--eval-sequences" : "all of --eval-data"}};
}

std::string UpdateRule(const RunPlan& plan) {
  std::string adamw =
      absl::StrCat("betas ", plan.adamw.beta1, " and ", plan.adamw.beta2, ", eps ", plan.adamw.eps);
  switch (plan.optimizer) {
    case OptimizerKind::kAdamW:
      return adamw;
    case OptimizerKind::kSgd:
      return absl::StrCat("momentum ", plan.sgd.momentum, plan.sgd.nesterov ? " with nesterov" : "");
    case OptimizerKind::kMuon:
      return absl::StrCat("momentum ", plan.muon.momentum, plan.muon.nesterov ? " with nesterov" : "",
                          ", lr scale ", ToAbsl(Name(plan.muon.lr_scale)), ", AdamW for others: lr ",
                          plan.adamw.lr, ", ", adamw);
  }
  return "";
}

ResolvedItem OptimizerItem(const RunPlan& plan) {
  const std::string name = plan.optimizer == OptimizerKind::kAdamW ? "AdamW"
                           : plan.optimizer == OptimizerKind::kSgd ? "SGD"
                                                                   : "Muon";
  const LrSchedule& lr = plan.learning_rate;
  const std::string floor =
      lr.decay == LrDecay::kConstant ? "" : absl::StrCat(" down to ", lr.min_ratio, " of it");
  return {"optimizer",
          absl::StrCat(name, plan.updates_in_backward ? " in backward" : "", ", lr ", lr.lr, " ",
                       ToAbsl(Name(lr.decay)), floor, " after ", lr.warmup_steps, " warm-up steps, ",
                       UpdateRule(plan), ", decay ", plan.adamw.weight_decay, " of ",
                       plan.decay == DecayScope::kAll ? "all parameters" : "matrices only", ", clip ",
                       plan.clip_grad_norm),
          ""};
}

ResolvedItem ShardingItem(const TrainConfig& config, const RunPlan& plan) {
  const ParallelOptions& parallel = plan.parallel;
  const bool prefetches_more = parallel.prefetch_depth == ShardingPolicy::kPrefetchOverNodes;
  return {
      "sharding",
      absl::StrCat("zero-copy ", OnOff(parallel.zero_copy), ", reshard after forward ",
                   OnOff(parallel.reshard_after_forward), ", optimizer sharded over replicas ",
                   OnOff(parallel.shard_optimizer_over_replicas), ", prefetch ", *parallel.prefetch_depth,
                   ", gradient sync ", ToAbsl(Name(parallel.grad_sync)), ", activation checkpoint ",
                   ToAbsl(Name(parallel.activation_checkpoint)), ", parameters ",
                   ToAbsl(Name(parallel.param_dtype)), ", reduction ", ToAbsl(Name(parallel.reduce_dtype))),
      config.parallel.prefetch_depth ? "prefetch by --prefetch-depth"
      : prefetches_more              ? "prefetch for shard groups that span nodes"
                                     : "prefetch for shard groups on one node"};
}

// Empty if all is computed in f32.
std::vector<ResolvedItem> ProductItems(const RunPlan& plan) {
  const DType dtype = plan.parallel.param_dtype;
  if (dtype == DType::kF32) {
    return {};
  }
  const std::string name(Name(dtype));
  const std::string library = absl::StrCat(" by ", ToAbsl(MatmulLibrary()));
  const std::string instructions(PanelInstructions());
  const std::string rest =
      absl::StrCat(library, PacksAttention(dtype) ? "; attention's on " + instructions : "");
  if (dtype == DType::kBF16 && instructions == "AMX") {
    return {{"products", "bf16 on AMX tiles, small ones" + rest, "the CPU has instructions for them"}};
  }
  if (UsesNativeMatmul(dtype)) {
    return {{"products", name + rest, "the CPU has instructions for them"}};
  }
  return {{"products", absl::StrCat(name, " widened to f32", rest),
           dtype == DType::kF16   ? "the CPU or oneDNN has no f16 products with sums in f32"
           : instructions.empty() ? "the CPU or this build has no instructions for bf16 products"
                                  : "this build has no library of bf16 products"}};
}

// Empty without a loss scale.
std::vector<ResolvedItem> LossScaleItems(const TrainConfig& config, const RunPlan& plan) {
  if (!plan.loss_scaling) {
    return {};
  }
  const LossScaler scaler(*plan.loss_scaling);
  const std::string growth = absl::StrCat(", doubled after ", plan.loss_scaling->growth_interval,
                                          " steps without an overflow, halved after an overflow");
  return {{"loss-scale",
           absl::StrCat(scaler.is_dynamic() ? "dynamic from " : "", scaler.scale(),
                        scaler.is_dynamic() ? growth : ""),
           config.optimizer.loss_scale.empty() ? "f16" : "--loss-scale"}};
}

// Empty on one node, whose ranks exchange tensors in its memory.
std::vector<ResolvedItem> TransportItems(const Bootstrap& bootstrap) {
  const int nodes = bootstrap.node_map().node_count();
  if (nodes == 1) {
    return {};
  }
  return {{"transport", bootstrap.TransportName(), absl::StrCat("between the ", nodes, " nodes")}};
}

}  // namespace

std::vector<ResolvedItem> ResolveConfig(const TrainConfig& config, const TrainInputs& inputs,
                                        const RunPlan& plan, const ThreadPlan& threads,
                                        const Bootstrap& bootstrap) {
  std::vector<ResolvedItem> items = {
      ModelItem(config, inputs.model),
      DataItem(config, inputs.corpus, plan),
      BatchItem(config, plan),
      OptimizerItem(plan),
      MeshItem(plan),
      ShardingItem(config, plan),
      {"share-domain", std::string(Name(plan.domains.kind)), plan.domains.reason},
      {"node-shared", std::string(Name(plan.residency.residency)), plan.residency.reason},
      {"threads", absl::StrCat(threads.threads, " per rank"), threads.reason},
      {"seed", absl::StrCat(config.seed), ""},
      {"steps", absl::StrCat(config.optimizer.steps), ""}};
  for (std::vector<ResolvedItem> more : {AttentionItems(config, inputs, plan), LoraItems(config, inputs),
                                         ProductItems(plan), LossScaleItems(config, plan), ContextItems(plan),
                                         EvaluationItems(config, plan), TransportItems(bootstrap)}) {
    std::move(more.begin(), more.end(), std::back_inserter(items));
  }
  return items;
}

std::string MeasuredProductSpeed(DType dtype) {
  constexpr int64_t kSize = 512;
  constexpr int kRepeats = 3;
  const size_t bytes = 2 * kSize * kSize * SizeOf(dtype);
  const Tensor factors = Tensor::Empty(dtype, {2, kSize, kSize});
  const Tensor result = Tensor::Empty(dtype, {kSize, kSize});
  std::memset(factors.view().data, 0x3C, bytes);  // About 0.01 in f32 and bf16, and 1.06 in f16.
  double seconds = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= kRepeats; ++i) {  // The first repeat warms up.
    const auto begin = std::chrono::steady_clock::now();
    Matmul(kSize, kSize, kSize, dtype, {factors.view().data, kSize},
           {factors.view().Slice(0, 1, 1).data, kSize, true}, 0.0F, dtype, result.view().data, kSize);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    if (i > 0) seconds = std::min(seconds, elapsed.count());
  }
  return absl::StrFormat("%.0f GFLOP/s by the threads of rank 0, in %s products of size %d",
                         2e-9 * kSize * kSize * kSize / seconds, ToAbsl(Name(dtype)), kSize);
}

std::string ToText(const std::vector<ResolvedItem>& items) {
  size_t width = 0;
  for (const ResolvedItem& item : items) {
    width = std::max(width, item.key.size());
  }
  std::string text;
  for (const ResolvedItem& item : items) {
    absl::StrAppend(&text, item.key, std::string(width + 2 - item.key.size(), ' '), item.value,
                    item.reason.empty() ? "" : absl::StrCat("  (", item.reason, ")"), "\n");
  }
  return text;
}

std::string ToJson(const std::vector<ResolvedItem>& items) {
  Json json;
  for (const ResolvedItem& item : items) {
    json[item.key] = {{"value", item.value}, {"reason", item.reason}};
  }
  return JsonText(json, 2) + "\n";
}

}  // namespace weft
