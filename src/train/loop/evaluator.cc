#include "src/train/loop/evaluator.h"

#include <utility>
#include <vector>

#include "src/train/data/batch_reader.h"
#include "weft/core/status.h"
#include "weft/mesh/world_group.h"

namespace weft {
namespace {

BatchOrder InOrder(const EvaluationPlan& plan) { return {plan.windows, /*shuffle=*/false, /*seed=*/0}; }

}  // namespace

Evaluator::Evaluator(CommEngine& engine, LlamaModel& model, const Corpus& corpus, const EvaluationPlan& plan,
                     const BatchSplitter& splitter)
    : engine_(engine),
      model_(model),
      corpus_(corpus),
      plan_(plan),
      splitter_(splitter),
      pool_(engine.heap(), "evaluation losses") {}

absl::StatusOr<std::unique_ptr<Evaluator>> Evaluator::Create(CommEngine& engine, LlamaModel& model,
                                                             const Corpus& corpus, const EvaluationPlan& plan,
                                                             const BatchSplitter& splitter) {
  WEFT_ASSIGN_OR_RETURN(const int64_t targets,
                        CountTargets(corpus, InOrder(plan), {0, plan.windows}, plan.seq_len));
  if (targets == 0) {
    return absl::DataLossError("--eval-data: no token has a loss, by the masks of --loss-mask");
  }
  std::unique_ptr<Evaluator> evaluator(new Evaluator(engine, model, corpus, plan, splitter));
  evaluator->targets_ = targets;
  WEFT_ASSIGN_OR_RETURN(evaluator->lane_,
                        engine.SharedLane(WorldGroup(engine.bootstrap()), LanePurpose::kControl));
  WEFT_ASSIGN_OR_RETURN(evaluator->losses_,
                        evaluator->pool_.Acquire(sizeof(double) * static_cast<size_t>(plan.losses())));
  WEFT_ASSIGN_OR_RETURN(evaluator->stopped_, evaluator->pool_.Acquire(sizeof(int64_t)));
  return evaluator;
}

absl::StatusOr<double> Evaluator::ComputeLoss() {
  for (int64_t round = 0; round < plan_.rounds(); ++round) WEFT_RETURN_IF_ERROR(RunRound(round));
  return GatherLoss();
}

absl::StatusOr<std::optional<double>> Evaluator::ComputeLossUnless(absl::FunctionRef<bool()> is_stopped) {
  for (int64_t round = 0; round < plan_.rounds(); ++round) {
    // A rank that left alone would be missed in the gathers of the next pass.
    WEFT_ASSIGN_OR_RETURN(const bool stopped, IsAnyStopped(is_stopped()));
    if (stopped) return std::nullopt;
    WEFT_RETURN_IF_ERROR(RunRound(round));
  }
  return GatherLoss();
}

absl::StatusOr<bool> Evaluator::IsAnyStopped(bool own) {
  auto& any = *reinterpret_cast<int64_t*>(stopped_.data());
  any = own ? 1 : 0;
  OpOptions options;
  options.label = "stop_requests";
  options.priority = Priority::kCritical;
  Work work = engine_.AllReduce(lane_, &any, &any, DType::kI64, 1, ReduceOp::kMax, options);
  WEFT_RETURN_IF_ERROR(work.WaitReleased());
  return any != 0;
}

absl::Status Evaluator::RunRound(int64_t round) {
  const SequenceRange windows = plan_.Windows(data_parallel_rank(), round);
  WEFT_ASSIGN_OR_RETURN(const double loss, RunPass(windows));
  if (windows.count > 0) own_losses()[round] = loss;
  return absl::OkStatus();
}

absl::StatusOr<double> Evaluator::RunPass(SequenceRange windows) {
  WEFT_ASSIGN_OR_RETURN(const Microbatch whole, ReadMicrobatch(corpus_, InOrder(plan_), windows,
                                                               plan_.seq_len, model_.config().vocab_size));
  WEFT_ASSIGN_OR_RETURN(RankBatch batch, splitter_.Split(whole));
  Invocation invocation(/*gradients=*/false);
  invocation.SetSequence(std::move(batch.sequence));
  WEFT_ASSIGN_OR_RETURN(const Tensors sum,
                        model_.Forward(invocation, {std::move(batch.inputs), std::move(batch.targets)}));
  return *sum[0].As<float>();
}

absl::StatusOr<double> Evaluator::GatherLoss() {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    counts.insert(counts.end(), static_cast<size_t>(plan_.context), plan_.PassCount(rank));
  }
  OpOptions options;
  options.label = "evaluation_losses";
  options.priority = Priority::kCritical;
  // The gather only copies, so it can move the losses as integers of the same size.
  static_assert(sizeof(double) == sizeof(int64_t));
  Work work = engine_.AllGather(lane_, own_losses(), losses(), DType::kI64, plan_.losses(), counts, options);
  WEFT_RETURN_IF_ERROR(work.WaitReleased());
  const auto all = absl::MakeConstSpan(losses(), static_cast<size_t>(plan_.losses()));
  return plan_.Sum(all) / static_cast<double>(targets_);
}

}  // namespace weft
