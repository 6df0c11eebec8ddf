#include "weft/train/train.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/train/data/data_files.h"
#include "src/train/files/file_io.h"
#include "src/train/files/json.h"
#include "src/train/loop/data_check.h"
#include "src/train/loop/evaluator.h"
#include "src/train/loop/finite_checks.h"
#include "src/train/loop/run_checkpoints.h"
#include "src/train/loop/run_model_files.h"
#include "src/train/loop/sharded_hash.h"
#include "src/train/loop/skip_counter.h"
#include "src/train/loop/trainer.h"
#include "src/train/output/export_hf.h"
#include "src/train/output/output_locks.h"
#include "src/train/output/outputs.h"
#include "src/train/output/resolved_config.h"
#include "src/train/output/run_console.h"
#include "src/train/output/run_records.h"
#include "src/train/plan/agreement.h"
#include "src/train/plan/inputs.h"
#include "src/train/plan/memory_need.h"
#include "src/train/plan/run_plan.h"
#include "src/train/plan/run_properties.h"
#include "src/train/trace/run_trace.h"
#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/mesh/host_memory.h"
#include "weft/train/thread_plan.h"

namespace weft {
namespace {

// Weights and states of the optimizer in fp32.
int64_t CheckpointBytes(const LlamaConfig& model, const RunPlan& plan) {
  return static_cast<int64_t>(sizeof(float)) * (TrainedElements(model, plan) + StateElements(model, plan));
}

// The parts of a run, in the order in which they are created.
class Run {
 public:
  Run(Bootstrap& bootstrap, const TrainConfig& config, const TrainEnvironment& environment,
      absl::Duration timeout)
      : bootstrap_(bootstrap),
        config_(config),
        environment_(environment),
        timeout_(timeout),
        console_(first() ? environment.output : nullptr, config.optimizer.steps, environment.terminal) {}

  absl::StatusOr<TrainReport> Execute() {
    const absl::Status status = RunPhases();
    // Peers may wait for this rank in an operation. After a missed deadline, the engine's destructor writes
    // the flight recorder and ends the process if the environment allows it.
    if (!status.ok() && !IsAgreedError(status) && trainer_ != nullptr) trainer_->Fail(status);
    WEFT_RETURN_IF_ERROR(AgreeOnCause(status));
    return report_;
  }

 private:
  absl::Status RunPhases() {
    WEFT_RETURN_IF_ERROR(Prepare());
    WEFT_RETURN_IF_ERROR(Announce());
    WEFT_RETURN_IF_ERROR(Build());
    const absl::Status trained = TrainSteps();
    console_.EndProgress();
    if (trained.ok()) {
      WEFT_RETURN_IF_ERROR(FinishSaveAndTrace());
    } else if (absl::IsOutOfRange(trained)) {
      // If a loss or norm is not finite, all ranks end at the same step, with that as the cause.
      const absl::Status finished = FinishSaveAndTrace();
      for (const absl::Status& error : {finished, recorded_}) {
        if (!error.ok()) console_.Warn(ToStd(error.message()));
      }
    } else {
      trainer_->Fail(trained);  // Peers may wait for this rank.
    }
    WEFT_RETURN_IF_ERROR(AgreeOnCause(trained.ok() ? recorded_ : trained));
    return Finish();
  }

  bool first() const { return bootstrap_.rank() == 0; }
  absl::Status Agree(const absl::Status& local) { return AgreeOnStatus(bootstrap_, local, timeout_); }

  absl::Status AgreeOnCause(const absl::Status& local) {
    return weft::AgreeOnCause(bootstrap_, local, timeout_);
  }

  absl::Status OpenAndPlan() {
    WEFT_ASSIGN_OR_RETURN(inputs_, OpenInputs(config_));
    WEFT_ASSIGN_OR_RETURN(model_, CreateModel(*inputs_));
    if (inputs_->weights) {
      WEFT_RETURN_IF_ERROR(
          CheckTiedHead(*inputs_->weights, inputs_->model, bootstrap_.rank(), bootstrap_.size()));
    }
    WEFT_ASSIGN_OR_RETURN(plan_, MakeRunPlan(config_, *inputs_, bootstrap_.node_map()));
    WEFT_ASSIGN_OR_RETURN(properties_, PropertiesOf(config_, *inputs_));
    if (!first()) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(WaitForLockedOutputs(
        config_, std::min(environment_.lock_wait, timeout_ / 2), [this] { return IsStopRequested(); },
        console_));
    WEFT_RETURN_IF_ERROR(CheckOutputs(config_, *inputs_));
    WEFT_ASSIGN_OR_RETURN(model_files_, RunModelFiles::Open(config_, *inputs_, *model_));
    return absl::OkStatus();
  }

  absl::Status Prepare() {
    WEFT_RETURN_IF_ERROR(Agree(OpenAndPlan()));
    WEFT_RETURN_IF_ERROR(AgreeOnCause(AgreeOnProperties(bootstrap_, properties_, timeout_)));
    WEFT_RETURN_IF_ERROR(CheckExportIsShared(bootstrap_, config_.output.export_folder, export_target(),
                                             writes_export(), timeout_));
    WEFT_RETURN_IF_ERROR(Agree(CheckMemory()));
    WEFT_ASSIGN_OR_RETURN(checkpoints_,
                          RunCheckpoints::Open(bootstrap_, config_.checkpoint, *plan_, properties_,
                                               CheckpointBytes(inputs_->model, *plan_), timeout_));
    WEFT_RETURN_IF_ERROR(Agree(checkpoints_->CheckLimits(config_.optimizer)));
    return CheckData(
        bootstrap_, *inputs_, [this] { return IsStopRequested(); }, console_, timeout_);
  }

  // The first replica writes the export.
  bool writes_export() const { return bootstrap_.rank() < plan_->shard_group_size(); }
  const HfExport* export_target() const { return model_files_ ? model_files_->export_target() : nullptr; }

  absl::Status CheckMemory() const {
    WEFT_ASSIGN_OR_RETURN(const size_t available, AvailableHostMemory());
    const size_t ranks = bootstrap_.node_map().RanksOf(bootstrap_.node()).size();
    return CheckFits(NeedOf(*model_, *plan_), static_cast<int>(ranks), static_cast<int64_t>(available),
                     kMemoryRemedies);
  }

  absl::Status Announce() {
    WEFT_ASSIGN_OR_RETURN(const NodePlacement placement, FindPlacement(bootstrap_, timeout_));
    const ThreadPlan threads = PlanThreads(placement);
    SetThreadCount(threads.threads);
    resolved_ = ResolveConfig(config_, *inputs_, *plan_, threads, bootstrap_);
    console_.PrintConfiguration(resolved_, plan_->parallel.param_dtype);
    for (const std::string& warning : threads.warnings) console_.Warn(warning);
    if (first()) WarnAboutData();
    for (const std::string& message : checkpoints_->messages()) console_.PrintLine(message);
    if (model_files_ == nullptr) return absl::OkStatus();
    for (const std::string& message : model_files_->messages()) {
      console_.PrintLine(absl::StrCat("export   ", message));
    }
    return absl::OkStatus();
  }

  void WarnAboutData() {
    std::string warning = WarningAboutText(inputs_->corpus);
    if (warning.empty() && inputs_->eval_corpus) warning = WarningAboutText(*inputs_->eval_corpus);
    if (!warning.empty()) console_.Warn(warning);
  }

  absl::Status Build() {
    const Checkpoint* resumed = checkpoints_->resumed();
    ShardLoader loader = LoadInputs(*inputs_, config_.seed);
    if (resumed != nullptr) loader = LoadWeights(*resumed, *plan_, loader);
    EngineOptions engine = environment_.engine;
    engine.timeout = timeout_;
    engine.share_domain = plan_->parallel.share_domain;
    engine.watchdog = environment_.watchdog;
    engine.dump_folder = config_.output.dump_folder;
    WEFT_ASSIGN_OR_RETURN(
        trainer_, Trainer::Create(bootstrap_, inputs_->corpus, *plan_, std::move(model_), loader, engine));
    AnnounceWireCompression();
    if (resumed != nullptr) {
      WEFT_RETURN_IF_ERROR(Agree(LoadTrainingState(*resumed, trainer_->state())));
      report_.steps = resumed->step();
      skips_ = SkipCounter(checkpoints_->skips(), config_.optimizer.in_backward);
      checkpoints_->CloseResumed();
    }
    WEFT_RETURN_IF_ERROR(OpenTrace());  // All ranks have the same flags and the same checkpoint.
    return Agree(OpenEvaluatorAndRecords());
  }

  // On one node nothing is sent, so there is nothing to announce.
  void AnnounceWireCompression() {
    if (bootstrap_.node_map().node_count() == 1) return;
    const WireCompressionChoice& choice = trainer_->wire_compression();
    resolved_.push_back({"wire-compression", std::string(Name(choice.wire_compression)), choice.reason});
    console_.PrintItem(resolved_.back());
  }

  // Both steps can fail on one rank alone.
  absl::Status OpenEvaluatorAndRecords() {
    if (plan_->evaluation) {
      WEFT_ASSIGN_OR_RETURN(evaluator_,
                            Evaluator::Create(trainer_->engine(), trainer_->model(), *inputs_->eval_corpus,
                                              *plan_->evaluation, trainer_->splitter()));
    }
    if (!first()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(records_,
                          RunRecords::Open(config_, resolved_,
                                           {.first_step = checkpoints_->first_step(),
                                            .resumed = checkpoints_->resumed_step().has_value(),
                                            .byte_inputs = JsonText(ToJson(trainer_->byte_inputs()))},
                                           console_));
    return absl::OkStatus();
  }

  absl::Status TrainSteps() {
    for (int64_t step = checkpoints_->first_step(); step <= config_.optimizer.steps && !report_.stopped;
         ++step) {
      const bool last = step == config_.optimizer.steps;
      trainer_->engine().SetPhase(absl::StrCat("step ", step));
      if (trace_) WEFT_RETURN_IF_ERROR(trace_->BeforeStep(step));
      WEFT_ASSIGN_OR_RETURN(Trainer::StepResult result, trainer_->Step(step, TakeRequests(), [this] {
        return checkpoints_->BeforeUpdate();
      }));
      WEFT_RETURN_IF_ERROR(TraceAfter(step));
      skips_.Add(result);
      result.metrics.skipped_steps = skips_.total().all;
      result.metrics.counted_skips = skips_.limited();
      if (EvaluatesAfter(step) && CheckFinite(result.metrics, config_.optimizer).ok()) {
        trainer_->engine().SetPhase(absl::StrCat("evaluation after step ", step));
        WEFT_ASSIGN_OR_RETURN(report_.eval_loss, evaluator_->ComputeLoss());
        result.metrics.eval_loss = report_.eval_loss;
        // Otherwise a request would wait for one more step and its evaluation.
        if (!last) {
          WEFT_ASSIGN_OR_RETURN(result.flags.stop, evaluator_->IsAnyStopped(result.flags.stop || MustStop()));
        }
      }
      Record(result.metrics);
      report_.steps = step;
      report_.loss = result.metrics.loss;
      report_.stopped = result.flags.stop && !last;
      console_.PrintStep(result.metrics, result.skipped);
      WEFT_RETURN_IF_ERROR(CheckFinite(result.metrics, config_.optimizer));
      WEFT_RETURN_IF_ERROR(CheckReplicasAfter(step));
      WEFT_RETURN_IF_ERROR(SaveAfter(step, result.flags));
      PrintSaved();
      if (result.flags.save && !checkpoints_->enabled()) {
        console_.PrintLine("SIGUSR1 asks for a checkpoint, but there is no --checkpoint-dir");
      }
    }
    return EvaluateLastCheckpoint();
  }

  // Prints the checkpoint that was committed since the last call, and the old ones that could not be removed.
  void PrintSaved() {
    console_.PrintSaved(checkpoints_->TakeSaved());
    for (const std::string& warning : checkpoints_->TakeWarnings()) console_.Warn(warning);
  }

  // Finishes a save of an earlier step that is under way, and writes the steps that were traced so far.
  absl::Status FinishSaveAndTrace() {
    WEFT_RETURN_IF_ERROR(checkpoints_->Finish());
    PrintSaved();
    if (!trace_) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(trace_->Finish());
    console_.PrintTrace(config_.output.trace_file, trace_->written());
    return absl::OkStatus();
  }

  absl::Status OpenTrace() {
    if (config_.output.trace_file.empty()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(
        const StepRange steps,
        TracedSteps(config_.output.trace_steps, checkpoints_->first_step(), config_.optimizer.steps));
    trace_.emplace(trainer_->engine(), config_.output.trace_file, steps, timeout_);
    return absl::OkStatus();
  }

  // A trace that cannot be written stops the run as metrics do, after the next step and its checkpoint.
  absl::Status TraceAfter(int64_t step) {
    if (!trace_) return absl::OkStatus();
    absl::Status traced = trace_->AfterStep(step);
    if (!IsAgreedError(traced)) return traced;
    if (!recorded_.ok()) console_.Warn(ToStd(recorded_.message()));  // Of rank 0 alone.
    recorded_ = std::move(traced);
    trace_.reset();
    return absl::OkStatus();
  }

  // Before a save: weights of a faulty replica must not reach a checkpoint.
  absl::Status CheckReplicasAfter(int64_t step) {
    const int64_t interval = config_.parallel.check_replicas;
    if (interval == 0 || step % interval != 0) return absl::OkStatus();
    trainer_->engine().SetPhase(absl::StrCat("comparison of replicas after step ", step));
    WEFT_ASSIGN_OR_RETURN(const std::vector<ShardView> shards, trainer_->CurrentShards());
    return Annotate(
        HashShards(bootstrap_, trainer_->model(), shards, plan_->shard_group_size(), timeout_).status(),
        absl::StrCat("after step ", step));
  }

  bool IsStopRequested() const { return environment_.stop != nullptr && environment_.stop->load(); }

  bool MustStop() const { return console_.has_failed() || !recorded_.ok() || IsStopRequested(); }

  StepFlags TakeRequests() {
    StepFlags flags;
    flags.stop = MustStop();
    flags.save = environment_.save != nullptr && environment_.save->exchange(false);
    flags.can_advance_save = checkpoints_->CanAdvance();
    return flags;
  }

  // Begins or advances a save, as all ranks agreed in the step. Waits for the save of the last step.
  absl::Status SaveAfter(int64_t step, const StepFlags& flags) {
    if (!checkpoints_->enabled()) return absl::OkStatus();
    const bool last = flags.stop || step == config_.optimizer.steps;
    if (last || flags.save || checkpoints_->IsDue(step)) {
      trainer_->engine().SetPhase(absl::StrCat("checkpoint of step ", step));
      const TrainingState state = trainer_->state();
      // An update can overflow after a step whose loss and gradient norm are finite.
      WEFT_RETURN_IF_ERROR(Agree(CheckWeightsFinite(state.model.Shards(), step, config_.optimizer)));
      WEFT_RETURN_IF_ERROR(checkpoints_->Save(
          state, step, skips_.total(),
          model_files_ ? model_files_->BesideCheckpoint() : std::map<std::string, std::string>{}));
    } else if (flags.can_advance_save) {
      WEFT_RETURN_IF_ERROR(checkpoints_->Advance());
    }
    return last ? checkpoints_->Finish() : absl::OkStatus();
  }

  bool EvaluatesAfter(int64_t step) const {
    if (evaluator_ == nullptr) return false;
    const int64_t interval = config_.eval.interval;
    return step == config_.optimizer.steps || (interval > 0 && step % interval == 0);
  }

  // A run with --steps 0, or one that goes on from its last step, has no step to do.
  absl::Status EvaluateLastCheckpoint() {
    if (evaluator_ == nullptr || checkpoints_->first_step() <= config_.optimizer.steps)
      return absl::OkStatus();
    trainer_->engine().SetPhase(absl::StrCat("evaluation after step ", report_.steps));
    WEFT_ASSIGN_OR_RETURN(report_.eval_loss, evaluator_->ComputeLossUnless([this] { return MustStop(); }));
    report_.stopped = !report_.eval_loss.has_value();
    if (report_.stopped) return absl::OkStatus();
    console_.PrintEvaluation(report_.steps, *report_.eval_loss);
    return CheckLossOfGivenWeights(report_.steps, *report_.eval_loss, config_);
  }

  void Record(const StepMetrics& metrics) {
    if (environment_.on_step) {
      environment_.on_step(metrics);
    }
    if (records_) recorded_.Update(records_->Write(metrics));
  }

  absl::Status Finish() {
    trainer_->engine().SetPhase("end of the run: weights hash and export");
    WEFT_ASSIGN_OR_RETURN(const std::vector<ShardView> shards, trainer_->CurrentShards());
    WEFT_RETURN_IF_ERROR(Agree(CheckWeightsFinite(shards, report_.steps, config_.optimizer)));
    WEFT_ASSIGN_OR_RETURN(report_.weights_hash, HashShards(bootstrap_, trainer_->model(), shards,
                                                           plan_->shard_group_size(), timeout_));
    console_.PrintWeightsHash(report_.weights_hash);
    report_.skipped_steps = skips_.total().all;
    report_.checkpoint = checkpoints_->last_saved();
    if (report_.stopped || config_.output.export_folder.empty()) {
      return absl::OkStatus();
    }
    if (config_.output.export_merged) WEFT_RETURN_IF_ERROR(trainer_->MergeAdapters());
    WEFT_RETURN_IF_ERROR(ExportHf(bootstrap_, export_target(), trainer_->model(), shards,
                                  ExportedWeightsOf(config_), ExportDType(config_), writes_export(),
                                  timeout_));
    console_.PrintExported(config_.output.export_folder);
    return absl::OkStatus();
  }

  Bootstrap& bootstrap_;
  const TrainConfig& config_;
  const TrainEnvironment& environment_;
  absl::Duration timeout_;
  RunConsole console_;
  std::optional<TrainInputs> inputs_;
  std::unique_ptr<LlamaModel> model_;
  std::optional<RunPlan> plan_;
  std::vector<RunProperty> properties_;  // Equal on all ranks.
  std::vector<ResolvedItem> resolved_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<RunTrace> trace_;         // If there is --trace.
  std::unique_ptr<Evaluator> evaluator_;  // Null without --eval-data.
  std::optional<RunRecords> records_;     // On rank 0.
  absl::Status recorded_;  // The first error of records or trace, which stops the run after the next step.
  std::unique_ptr<RunModelFiles> model_files_;  // On rank 0.
  std::unique_ptr<RunCheckpoints> checkpoints_;
  TrainReport report_;
  SkipCounter skips_;
};

}  // namespace

absl::StatusOr<TrainReport> Train(Bootstrap& bootstrap, const TrainConfig& config,
                                  const TrainEnvironment& environment) {
  const absl::StatusOr<absl::Duration> timeout = DefaultTimeout();
  // The variable may be wrong on one host alone.
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, timeout.status(), timeout.value_or(kFallbackTimeout)));
  return Run(bootstrap, config, environment, *timeout).Execute();
}

}  // namespace weft
