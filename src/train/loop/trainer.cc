#include "src/train/loop/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "src/train/data/batch_reader.h"
#include "src/train/plan/memory_need.h"
#include "weft/core/spans.h"
#include "weft/core/status.h"
#include "weft/mesh/host_memory.h"
#include "weft/nn/sparse/lightning_indexer.h"
#include "weft/nn/sparse/sparse_attention.h"
#include "weft/train/flops.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Every n-th query for which the share of attention mass is measured. It costs dense attention to these
// queries.
constexpr int64_t kMassStride = 64;

bool AreFinite(absl::Span<const GradientNorm> norms) {
  return std::all_of(norms.begin(), norms.end(),
                     [](const GradientNorm& norm) { return std::isfinite(norm.norm); });
}

// NaN for a mean of nothing.
double Mean(double sum, int64_t count) {
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

// The model with dense attention, in which the indexers learn from all keys.
LlamaConfig WarmUpConfig(LlamaConfig config, int64_t seq_len) {
  if (config.sparse_attention) config.sparse_attention->top_k = seq_len;
  return config;
}

}  // namespace

Trainer::Trainer(Bootstrap& bootstrap, const Corpus& corpus, RunPlan plan, BatchSplitter splitter,
                 std::unique_ptr<LlamaModel> model)
    : bootstrap_(bootstrap),
      corpus_(corpus),
      plan_(std::move(plan)),
      splitter_(std::move(splitter)),
      flops_per_token_(FlopsPerToken(model->config(), plan_.seq_len, plan_.adapter_elements())),
      warm_up_flops_per_token_(FlopsPerToken(WarmUpConfig(model->config(), plan_.seq_len), plan_.seq_len)),
      model_(std::move(model)) {
  if (plan_.loss_scaling) loss_scaler_.emplace(*plan_.loss_scaling);
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Bootstrap& bootstrap, const Corpus& corpus,
                                                         RunPlan plan, std::unique_ptr<LlamaModel> model,
                                                         const ShardLoader& loader,
                                                         const EngineOptions& options) {
  absl::StatusOr<BatchSplitter> splitter = BatchSplitter::Create(
      plan.seq_len, plan.document_separator, plan.context.split(), bootstrap.rank() % plan.context.size);
  WEFT_ASSIGN_OR_RETURN(const absl::Duration timeout, TimeoutOrDefault(options.timeout));
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, splitter.status(), timeout));
  std::unique_ptr<Trainer> trainer(
      new Trainer(bootstrap, corpus, std::move(plan), *std::move(splitter), std::move(model)));
  WEFT_RETURN_IF_ERROR(trainer->Connect(loader, options));
  WEFT_ASSIGN_OR_RETURN(trainer->optimizer_, MakeOptimizer(trainer->plan_, *trainer->sharded_));
  return trainer;
}

absl::Status Trainer::Connect(const ShardLoader& loader, const EngineOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const absl::Duration timeout, TimeoutOrDefault(options.timeout));
  NodeHeap::Options heap_options;
  heap_options.timeout = timeout;
  const absl::StatusOr<size_t> segment = SegmentBytes(bootstrap_, NeedOf(*model_, plan_));
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap_, segment.status(), timeout));
  heap_options.segment_bytes = *segment;
  WEFT_ASSIGN_OR_RETURN(heap_, NodeHeap::Create(bootstrap_, heap_options));
  WEFT_ASSIGN_OR_RETURN(engine_, CommEngine::Create(bootstrap_, *heap_, options));
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap_, Prepare(), engine_->timeout()));
  if (plan_.parallel.wire_compression) {
    wire_compression_ = {*plan_.parallel.wire_compression, "--wire-compression"};
  } else {
    WEFT_ASSIGN_OR_RETURN(wire_compression_, ChooseWireCompression(*engine_));
  }
  const ShardingPolicy policy = plan_.Policy(wire_compression_.wire_compression);
  WEFT_ASSIGN_OR_RETURN(sharded_, FullyShard(*model_, model_->units(), plan_.mesh, *engine_, policy, loader));
  return absl::OkStatus();
}

absl::Status Trainer::Prepare() {
  WEFT_ASSIGN_OR_RETURN(summaries_,
                        StepSummaries::Create(bootstrap_, *heap_, *engine_, plan_.indexers.has_value()));
  for (DecoderBlock* block : model_->blocks()) {
    block->SetActivationCheckpointing(plan_.parallel.activation_checkpoint == ActivationCheckpoint::kFull);
  }
  return SplitSequences();
}

absl::Status Trainer::SplitSequences() {
  if (plan_.context.size == 1) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(
      context_, ContextParallel::Create(*engine_, *model_, plan_.mesh, {"context"}, plan_.context.scheme));
  return ParallelizeLlama(*context_, *model_);
}

CounterSnapshot Trainer::Counters() const {
  return {engine_->counters(), sharded_->counters(),
          TensorBytesFromSystem() + static_cast<int64_t>(heap_->total_allocated_bytes())};
}

TrainingState Trainer::state() {
  return {plan_, *sharded_, *optimizer_.rule, loss_scaler_ ? &*loss_scaler_ : nullptr};
}

ByteInputs Trainer::byte_inputs() const {
  return ByteInputsOf(sharded_->sharded_groups(), plan_, bootstrap_.node_map());
}

void Trainer::ResetPeaks() {
  sharded_->ResetPeaks();
  if (context_ != nullptr) context_->ResetPeak();
}

absl::Status Trainer::MergeAdapters() {
  WEFT_CHECK(!has_merged_adapters_, "adapters are merged once");
  has_merged_adapters_ = true;
  return weft::MergeAdapters(*sharded_, plan_.adapters->scaling);
}

absl::StatusOr<Trainer::StepResult> Trainer::Step(int64_t step, const StepFlags& flags,
                                                  absl::FunctionRef<absl::Status()> before_update) {
  if (has_merged_adapters_) {
    return absl::FailedPreconditionError(
        "the adapters were added to the weights, and a step would apply them twice: train before "
        "MergeAdapters");
  }
  const Span span("step", [step] { return absl::StrCat("step ", step); });
  const Clock::time_point start = Clock::now();
  const CounterSnapshot before = Counters();
  ResetPeaks();
  StepSummary own;
  own.flags = flags;
  WEFT_ASSIGN_OR_RETURN(const int64_t targets,
                        CountTargets(corpus_, plan_.order, plan_.SequencesOf(step), plan_.seq_len));
  WEFT_RETURN_IF_ERROR(ForwardAndBackward(step, targets, own, before_update));
  WEFT_ASSIGN_OR_RETURN(const std::vector<GradientNorm> norms,
                        plan_.updates_in_backward ? FinishUpdatesInBackward() : ClipGradNorms());
  WEFT_ASSIGN_OR_RETURN(const StepSummary all, summaries_->Sum(own));

  StepResult result;
  result.flags = all.flags;
  // All have the same bits on every rank, so all ranks decide alike.
  const bool has_losses = std::isfinite(all.loss) && std::isfinite(all.indexers.loss);
  const bool is_finite = has_losses && AreFinite(norms);
  result.skipped = !is_finite && !plan_.updates_in_backward;
  if (is_finite && !plan_.updates_in_backward) {
    WEFT_RETURN_IF_ERROR(before_update());
    WEFT_RETURN_IF_ERROR(Update(step, norms));
  }
  sharded_->ZeroGradients();
  StepMetrics& metrics = result.metrics;
  metrics = ResultsOf(step, all, norms);
  result.counts_as_skip = !is_finite;
  if (loss_scaler_) {
    metrics.loss_scale = {.scale = loss_scaler_->scale(), .skipped = result.skipped};
    const bool backed_off = loss_scaler_->Update(!AreFinite(norms));
    if (has_losses && backed_off) result.counts_as_skip = false;
  }
  if (corpus_.has_loss_mask()) metrics.loss_tokens = targets;
  AddCounters(before, Counters(), metrics);
  AddPeaks(*sharded_, context_.get(), *engine_, metrics);
  metrics.rss_bytes = ResidentBytes();
  metrics.step_ms = MillisecondsSince(start);
  metrics.tokens_per_s = static_cast<double>(metrics.tokens) / metrics.step_ms * 1e3;
  metrics.tflops =
      metrics.tokens_per_s * (IsWarmUp(step) ? warm_up_flops_per_token_ : flops_per_token_) / 1e12;
  return result;
}

StepMetrics Trainer::ResultsOf(int64_t step, const StepSummary& all,
                               absl::Span<const GradientNorm> norms) const {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = all.loss;
  metrics.grad_norm = norms[kLlama].norm;
  metrics.lr = plan_.learning_rate.At(step);
  if (plan_.indexers) {
    metrics.indexers = {Mean(all.indexers.loss, all.indexers.queries), norms[kIndexers].norm,
                        Mean(all.indexers.selected_mass, all.indexers.mass_pairs)};
  }
  metrics.tokens = plan_.tokens_per_step();
  metrics.tokens_seen = step * metrics.tokens;
  return metrics;
}

absl::Status Trainer::ForwardAndBackward(int64_t step, int64_t targets, StepSummary& own,
                                         absl::FunctionRef<absl::Status()> before_update) {
  // Scaled by the targets of the whole step, so the ranks' losses and gradients add up to those of the mean
  // loss.
  const float mean_factor = 1.0F / static_cast<float>(std::max<int64_t>(targets, 1));
  for (int64_t microbatch = 0; microbatch < plan_.batch.microbatches; ++microbatch) {
    const bool last = microbatch + 1 == plan_.batch.microbatches;
    SetGradientSync(last);
    if (last && plan_.updates_in_backward) {
      WEFT_RETURN_IF_ERROR(before_update());
      WEFT_RETURN_IF_ERROR(BeginUpdatesInBackward(step));
    }
    SequenceRange sequences = plan_.batch.Part(microbatch, plan_.data_parallel_rank(bootstrap_.rank()));
    sequences.first += plan_.SequencesOf(step).first;
    WEFT_RETURN_IF_ERROR(RunMicrobatch(step, sequences, mean_factor, own));
  }
  return absl::OkStatus();
}

void Trainer::SetGradientSync(bool last_microbatch) {
  const MicrobatchSync sync = plan_.SyncOf(last_microbatch);
  sharded_->SetRequiresGradientSync(sync.reduce_scatter);
  sharded_->SetRequiresAllReduce(sync.all_reduce);
  sharded_->SetIsLastBackward(last_microbatch);
}

absl::StatusOr<RankBatch> Trainer::ReadBatch(SequenceRange sequences) {
  const Span span("data", [] { return std::string("read batch"); });
  WEFT_ASSIGN_OR_RETURN(const Microbatch whole, ReadMicrobatch(corpus_, plan_.order, sequences, plan_.seq_len,
                                                               model_->config().vocab_size));
  return splitter_.Split(whole);
}

absl::StatusOr<std::vector<GradientNorm>> Trainer::ClipGradNorms() {
  const Span span("optimizer", [] { return std::string("clip"); });
  WEFT_ASSIGN_OR_RETURN(std::vector<GradientNorm> norms, sharded_->ClipGradNorms(ClipSetsOf(plan_)));
  return Unscaled(std::move(norms));
}

absl::StatusOr<std::vector<GradientNorm>> Trainer::FinishUpdatesInBackward() {
  const Span span("optimizer", [] { return std::string("finish updates in backward"); });
  WEFT_ASSIGN_OR_RETURN(std::vector<GradientNorm> norms, sharded_->FinishUpdatesInBackward());
  return Unscaled(std::move(norms));
}

std::vector<GradientNorm> Trainer::Unscaled(std::vector<GradientNorm> norms) const {
  if (!loss_scaler_) return norms;
  const std::vector<ClipSet> sets = ClipSetsOf(plan_);
  for (size_t i = 0; i < sets.size(); ++i) norms[i] = loss_scaler_->Unscaled(norms[i], sets[i].max_norm);
  return norms;
}

RandomKey Trainer::RandomKeyOf(int64_t step, SequenceRange sequences,
                               absl::Span<const int64_t> document_lengths) const {
  const int64_t first = sequences.first - plan_.SequencesOf(step).first;
  RandomKey key = MakeRandomKey(plan_.order.seed, step, first, sequences.count);
  int64_t token = 0;
  int64_t number = 0;
  for (const int64_t length : document_lengths) {
    if (token % plan_.seq_len == 0) number = 0;
    key.documents.push_back({first + token / plan_.seq_len, number++});
    token += length;
  }
  return key;
}

absl::Status Trainer::RunMicrobatch(int64_t step, SequenceRange sequences, float mean_factor,
                                    StepSummary& own) {
  const bool warm_up = IsWarmUp(step);
  WEFT_ASSIGN_OR_RETURN(RankBatch batch, ReadBatch(sequences));
  Invocation invocation(true, mean_factor);
  invocation.SetSequence(std::move(batch.sequence));
  if (plan_.adapters && plan_.adapters->dropout > 0) {
    invocation.SetRandomKey(RandomKeyOf(step, sequences, batch.document_lengths));
  }
  if (plan_.indexers) {
    IndexerPass& pass = IndexerPassOf(invocation);
    pass.warm_up = warm_up;
    // The indexers learn from all queries.
    pass.loss_factor = static_cast<float>(plan_.indexers->loss_coef) *
                       (1.0F / static_cast<float>(plan_.tokens_per_step())) * loss_scale();
    pass.mass_stride = kMassStride;
  }
  WEFT_ASSIGN_OR_RETURN(const Tensors losses,
                        model_->Forward(invocation, {std::move(batch.inputs), std::move(batch.targets)}));
  own.loss += *losses[0].As<float>();
  // In the warm-up only the indexers' loss has gradients.
  const float loss_gradient = warm_up ? 0.0F : loss_scale();
  WEFT_RETURN_IF_ERROR(model_->Backward(invocation, {Tensor::Scalar(loss_gradient)}).status());
  if (plan_.indexers) {
    const IndexerPass& pass = IndexerPassOf(invocation);
    own.indexers += {pass.loss, pass.queries, pass.selected_mass, pass.mass_pairs};
  }
  return absl::OkStatus();
}

absl::Status Trainer::Update(int64_t step, absl::Span<const GradientNorm> norms) {
  const Span span("optimizer", [] { return std::string("update"); });
  return optimizer_.rule->Step(*sharded_, GroupStepsOf(step, norms));
}

absl::Status Trainer::BeginUpdatesInBackward(int64_t step) {
  const std::vector<ClipSet> sets = ClipSetsOf(plan_);
  const std::vector<GradientNorm> unclipped(sets.size(), {0.0, 1.0 / loss_scale()});
  WEFT_ASSIGN_OR_RETURN(ShardUpdate update,
                        optimizer_.rule->BeginStepInBackward(*sharded_, GroupStepsOf(step, unclipped)));
  return sharded_->BeginUpdatesInBackward(std::move(update), sets);
}

std::vector<OptimizerGroupStep> Trainer::GroupStepsOf(int64_t step,
                                                      absl::Span<const GradientNorm> norms) const {
  std::vector<OptimizerGroupStep> groups;
  groups.reserve(optimizer_.sets.size());
  for (size_t i = 0; i < optimizer_.sets.size(); ++i) {
    const ParameterSet set = optimizer_.sets[i];
    groups.push_back({.gradient_scale = norms[set].factor,
                      .frozen = set == kLlama && IsWarmUp(step),
                      .lr = optimizer_.learning_rates[i].At(step)});
  }
  return groups;
}

}  // namespace weft
