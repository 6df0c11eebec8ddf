#include "src/cli/train_flags.h"

#include "src/cli/flag_group.h"
#include "weft/train/model_presets.h"

namespace weft {
namespace {

void AddModelFlags(CLI::App& app, ModelOptions& model) {
  FlagGroup group(app, "Model (a folder, a preset, or sizes)");
  group.Text("--hf-model", model.hf_model,
             "Hugging Face folder: config.json and safetensors; or its config.json alone, for a new model",
             "DIR");
  group.OneOf("--model", model.preset, PresetNames(), "tiny", "Preset, with new weights");
  group.Number("--layers", model.layers, "Decoder layers");
  group.Number("--dim", model.dim, "Model dimension");
  group.Number("--heads", model.heads, "Query heads");
  group.Number("--kv-heads", model.kv_heads, "Key and value heads [--heads]");
  group.Number("--ffn-dim", model.ffn_dim,
               "Feed-forward dimension [8/3 --dim, rounded up to a multiple of 64]");
  group.Number("--vocab-size", model.vocab_size, "Vocabulary size; allowed with --model [256]");
}

void AddAttentionFlags(CLI::App& app, AttentionConfig& attention) {
  FlagGroup group(app, "Attention (--dsa-*: of --attention dsa)");
  group.OneOf("--attention", attention.kind, {AttentionKind::kDense, AttentionKind::kDsa},
              "To all keys, or to those that an indexer selects (DeepSeek sparse attention)");
  group.Number("--dsa-topk", attention.top_k, "Keys that each query selects [512]");
  group.Number("--dsa-index-heads", attention.index_heads, "Heads of an indexer [4]");
  group.Number("--dsa-index-dim", attention.index_dim, "Elements of an indexer's head, an even number [32]");
  group.Number("--dsa-warmup-steps", attention.warmup_steps,
               "First steps that train the indexers alone, with dense attention [0]");
  group.Number("--dsa-loss-coef", attention.loss_coef, "Factor of the indexers' loss [1]");
}

void AddLoraFlags(CLI::App& app, LoraConfig& lora) {
  FlagGroup group(app, "LoRA (adapters are trained, the model is frozen)");
  group.Number("--lora-rank", lora.rank, "Rank of new adapters");
  group.Number("--lora-alpha", lora.alpha, "Adapters are scaled by this number over the rank [8]");
  group.Text("--lora-targets", lora.targets,
             "Layers with adapters: names as in transformers, or all-linear [q_proj,v_proj]", "NAMES");
  group.Number("--lora-dropout", lora.dropout,
               "Probability with which training drops an element of an adapter's input [0]");
  group.Text("--lora-adapter", lora.adapter, "PEFT folder with adapters to go on from, in place of new ones",
             "DIR");
}

void AddDataFlags(CLI::App& app, TrainConfig& config) {
  FlagGroup group(app, "Data");
  group.Texts("--data", config.data.paths,
              "Files or folders of text or of token ids (.bin .u16 .u32) [built-in text]", "PATH");
  group.Bool("--loss-mask", config.data.loss_mask,
             "FILE.mask beside each data file says which tokens have a loss; see tools/tokenize.py");
  group.Number("--seq-len", config.data.seq_len, "Tokens per sequence");
  group.Number("--batch-size", config.data.batch_size,
               "Sequences per step, over all ranks [--grad-accum x data-parallel ranks]");
  group.Number("--grad-accum", config.data.grad_accum, "Microbatches per step");
  group.Number("--document-separator", config.data.document_separator,
               "Token that ends a document; attention stays within a document [none]");
  group.Bool("--shuffle", config.data.shuffle, "Shuffle sequences, differently in each epoch");
  group.Number("--seed", config.seed, "Seed of initial weights and of the order of sequences");
}

void AddEvalFlags(CLI::App& app, EvalOptions& eval) {
  FlagGroup group(app, "Evaluation");
  group.Texts("--eval-data", eval.paths, "Files or folders on which to compute the loss after the last step",
              "PATH");
  group.Number("--eval-interval", eval.interval, "Also evaluate after every N steps; 0: only after the last");
  group.Number("--eval-sequences", eval.sequences, "Evaluate at most the first N sequences [all]");
}

void AddOptimizerFlags(CLI::App& app, OptimizerOptions& optimizer) {
  FlagGroup group(app, "Optimizer");
  group.OneOf("--optimizer", optimizer.kind,
              {OptimizerKind::kAdamW, OptimizerKind::kSgd, OptimizerKind::kMuon},
              "Update rule; muon: of the matrices of the layers, with AdamW for all other parameters");
  group.Number("--steps", optimizer.steps, "Updates of the weights");
  group.Number("--lr", optimizer.lr, "Learning rate");
  group.Number("--warmup-steps", optimizer.warmup_steps, "Steps of linear warm-up");
  group.OneOf("--lr-schedule", optimizer.lr_schedule,
              {LrDecay::kConstant, LrDecay::kLinear, LrDecay::kCosine},
              "Learning-rate schedule after warm-up");
  group.Number("--min-lr-ratio", optimizer.min_lr_ratio,
               "Learning rate at the last step, as a fraction of --lr");
  group.Number("--weight-decay", optimizer.weight_decay,
               "Weight decay; decoupled, but SGD adds it to the gradient");
  group.OneOf("--decay", optimizer.decay, {DecayScope::kAll, DecayScope::kMatrices},
              "Parameters that decay: all, or matrices only (not norms)");
  group.Number("--clip-grad-norm", optimizer.clip_grad_norm, "Largest gradient norm; 0: no clipping");
  group.Number("--max-skipped-steps", optimizer.max_skipped_steps,
               "Steps that a run may skip because the loss or gradient norm is not finite");
  group.Text("--loss-scale", optimizer.loss_scale,
             "f16: factor of the gradients, adapted when they overflow, or fixed [dynamic]", "dynamic|N");
  group.Number("--loss-scale-growth-interval", optimizer.loss_scale_growth_interval,
               "Steps without an overflow until a dynamic loss scale doubles");
  group.Number("--beta1", optimizer.beta1, "AdamW: decay of the first moment");
  group.Number("--beta2", optimizer.beta2, "AdamW: decay of the second moment");
  group.Number("--eps", optimizer.eps, "AdamW: term added to the root of the second moment");
  group.Number("--momentum", optimizer.momentum, "SGD, Muon: momentum [sgd: 0, muon: 0.95]");
  group.Bool("--nesterov", optimizer.nesterov, "SGD, Muon: Nesterov momentum [sgd: false, muon: true]");
  group.Number("--adamw-lr", optimizer.adamw_lr,
               "Muon: learning rate of the parameters that take AdamW [--lr]");
  group.OneOfOrUnset("--muon-lr-scale", optimizer.muon_lr_scale,
                     {MuonLrScale::kOriginal, MuonLrScale::kMatchRmsAdamW},
                     "Muon: factor of --lr by a matrix's shape, as torch's adjust_lr_fn [original]");
  group.Bool("--optimizer-in-backward", optimizer.in_backward,
             "Update a layer when its gradients are reduced, and free them; needs --clip-grad-norm 0");
}

void AddContextFlags(CLI::App& app, ContextOptions& context) {
  FlagGroup group(app, "Context parallelism");
  group.Number("--cp", context.size, "Ranks over which each sequence is split");
  group.OneOf("--cp-scheme", context.scheme,
              {CpScheme::kAuto, CpScheme::kUlysses, CpScheme::kGather, CpScheme::kHybrid, CpScheme::kRing},
              "Attention over split sequences; auto: the balanced scheme with the fewest bytes");
  group.Number("--ulysses-degree", context.ulysses_degree,
               "Ranks that exchange tokens for heads; as --cp: Ulysses, 1: gather, between: hybrid");
  group.OneOfOrUnset("--ring-rotate", context.ring_rotate, {RingRotation::kAllGather, RingRotation::kShift},
                     "How keys and values travel in a ring, or in a hybrid with a ring [shift]");
  group.OneOfOrUnset("--load-balance", context.load_balance,
                     {LoadBalance::kNone, LoadBalance::kHeadTail, LoadBalance::kQueryExchange},
                     "How the work of a causal mask is balanced [head-tail; Ulysses needs none]");
}

void AddParallelFlags(CLI::App& app, ParallelOptions& parallel) {
  FlagGroup group(app, "Parallelism (replicate x shard x cp = ranks)");
  group.Number("--dp-replicate", parallel.dp_replicate, "Replicas of the weights; -1: all remaining ranks");
  group.Number("--dp-shard", parallel.dp_shard, "Ranks that shard one replica; -1: all remaining ranks");
  group.Bool("--zero-copy", parallel.zero_copy, "Compute in gathered buffers, without copies");
  AddGatherFlags(group, parallel);
  group.Bool("--shard-optimizer-over-replicas", parallel.shard_optimizer_over_replicas,
             "Each replica updates a part of the weights; the other replicas gather it");
  group.Number("--check-replicas", parallel.check_replicas,
               "Compare the weights of the replicas after every N steps; 0: only at the end");
  group.OneOf(
      "--grad-sync", parallel.grad_sync,
      {GradientSync::kLast, GradientSync::kReduceScatter, GradientSync::kEach},
      "After each microbatch but the last: no reduction (last), reduce-scatter, or all-reduce too (each)");
  group.OneOf("--activation-checkpoint", parallel.activation_checkpoint,
              {ActivationCheckpoint::kNone, ActivationCheckpoint::kFull},
              "Keep activations for backward (none), or recompute them (full)");
  group.OneOf("--reduce-dtype", parallel.reduce_dtype, {DType::kF32, DType::kBF16, DType::kF16},
              "Dtype of gradient reductions");
}

void AddOutputFlags(CLI::App& app, OutputOptions& output) {
  FlagGroup group(app, "Output");
  group.Text("--metrics", output.metrics_file,
             "Write one JSON object per step, and the configuration beside it", "FILE.jsonl");
  group.Text("--tensorboard", output.tensorboard_folder,
             "Folder for an event file of TensorBoard with the metrics of each step", "DIR");
  group.Text("--export-hf", output.export_folder,
             "Hugging Face folder to write at the end; with LoRA a PEFT folder with the adapters", "DIR");
  group.OneOfOrUnset("--export-dtype", output.export_dtype, {DType::kF32, DType::kBF16, DType::kF16},
                     "Dtype of the exported weights [f32]");
  group.Bool("--export-merged", output.export_merged,
             "With LoRA: export the whole model, with the adapters added to its weights");
  group.Text("--trace", output.trace_file,
             "Write a trace of some steps, for Perfetto or Chrome (chrome://tracing)", "FILE.json");
  group.Text("--trace-steps", output.trace_steps,
             "First and last step of the trace [third to fifth, or the last of a shorter run]", "A:B");
  group.Text("--dump-folder", output.dump_folder,
             "Folder for the flight recorders of a failed run; see weft diagnose", "DIR");
}

void AddCheckpointFlags(CLI::App& app, CheckpointConfig& checkpoint) {
  FlagGroup group(app, "Checkpoints");
  group.Text("--checkpoint-dir", checkpoint.folder,
             "Folder for checkpoints, saved after the last step and at SIGUSR1, SIGTERM and Ctrl-C", "DIR");
  group.Number("--checkpoint-interval", checkpoint.interval, "Also save after every N steps; 0: never");
  group.Number("--keep-checkpoints", checkpoint.keep, "Newest checkpoints to keep; 0: all");
  group.Text("--resume", checkpoint.resume,
             "Go on from the checkpoint PATH, or the newest usable one in PATH or --checkpoint-dir (auto)",
             "auto|PATH");
  group.Bool("--checkpoint-async", checkpoint.async, "Write checkpoints while training goes on");
}

}  // namespace

void AddGatherFlags(FlagGroup& group, ParallelOptions& parallel) {
  group.OneOf("--node-shared", parallel.node_shared, {NodeShared::kAuto, NodeShared::kOn, NodeShared::kOff},
              "One copy of the weights per share domain; auto: if possible");
  group.OneOf("--share-domain", parallel.share_domain,
              {ShareDomain::kAuto, ShareDomain::kNode, ShareDomain::kNuma, ShareDomain::kNone},
              "Ranks that share one copy of gathered weights; auto: numa if ranks are bound to several NUMA "
              "nodes, else node");
  group.Bool("--reshard-after-forward", parallel.reshard_after_forward,
             "Free gathered parameters after forward");
  group.Number("--prefetch-depth", parallel.prefetch_depth,
               "Layers gathered ahead: 0, 1 or 2 [1; 2 if dp-shard x cp spans nodes]");
  group.OneOfOrUnset("--wire-compression", parallel.wire_compression,
                     {WireCompression::kNone, WireCompression::kLossless},
                     "Compression of weights and gradients between nodes [measured at the start]");
  group.OneOf("--param-dtype", parallel.param_dtype, {DType::kF32, DType::kBF16, DType::kF16},
              "Dtype of computation and of gathered weights");
}

void AddTrainFlags(CLI::App& app, TrainConfig& config) {
  AddModelFlags(app, config.model);
  AddAttentionFlags(app, config.attention);
  AddLoraFlags(app, config.lora);
  AddDataFlags(app, config);
  AddEvalFlags(app, config.eval);
  AddOptimizerFlags(app, config.optimizer);
  AddParallelFlags(app, config.parallel);
  AddContextFlags(app, config.parallel.context);
  AddOutputFlags(app, config.output);
  AddCheckpointFlags(app, config.checkpoint);
}

void AddPlanFlags(CLI::App& app, PlanOptions& options) {
  FlagGroup machine(app, "Machine");
  machine.Number("--ranks", options.ranks, "Ranks of the run");
  machine.Number("--hosts", options.hosts, "Hosts, which the ranks fill evenly");
  machine.Number("--numa-nodes", options.numa_nodes,
                 "NUMA nodes of each host, to which the ranks are bound evenly");
  machine.Number("--numa-speed", options.numa_gb_s,
                 "GB/s of a core's reads from another NUMA node [half of its copies within one]");
  machine.Number("--cores", options.cores, "Cores of each host [those of this machine]");
  machine.Number("--memory", options.memory_gib, "GiB of each host [available on this machine]");
  machine.Text("--link", options.link, "Rate and latency of each host's link, as 100gbit:5us", "LINK");
  machine.Text("--flops", options.flops,
               "Operations a second of each core, as 80gf or 2tf [those of the file of costs]", "RATE");
  FlagGroup costs(app, "Costs and output");
  costs.Switch("--measure", options.measure,
               "Measure the costs of this model on this machine, and store them");
  costs.Text("--costs", options.costs_file,
             "File of measured costs [weft/costs.json in $XDG_CACHE_HOME or ~/.cache]", "FILE");
  costs.Switch("--json", options.json, "Print JSON");
}

}  // namespace weft
